#include "sdk/src/parallel/gradient_layout.h"

#include <array>
#include <numeric>
#include <optional>

namespace cox::detail {
namespace {

std::int64_t aligned(std::int64_t elements) {
  constexpr std::int64_t kStep = GradientLayout::kAlignment;
  return (elements + kStep - 1) / kStep * kStep;
}

class Packer {
 public:
  Packer(std::size_t parameters, const BucketSizes& sizes) : sizes_(sizes) {
    layout_.places.resize(parameters);
  }

  void add(std::size_t parameter, const GradientShape& shape) {
    std::optional<GradientBucket>& open = open_[static_cast<std::size_t>(shape.type)];
    if (!open) open = GradientBucket{shape.type, 0, {}};
    open->parameters.push_back(parameter);
    layout_.places[parameter].offset = open->elements;
    open->elements += aligned(shape.elements);
    if (open->bytes() >= limit()) close(open);
  }

  GradientLayout finish() && {
    for (auto& open : open_) close(open);
    return std::move(layout_);
  }

 private:
  std::int64_t limit() const { return layout_.buckets.empty() ? sizes_.first_bytes : sizes_.bytes; }

  void close(std::optional<GradientBucket>& open) {
    if (!open) return;
    for (const std::size_t p : open->parameters) layout_.places[p].bucket = layout_.buckets.size();
    layout_.buckets.push_back(*std::move(open));
    open.reset();
  }

  BucketSizes sizes_;
  GradientLayout layout_;
  std::array<std::optional<GradientBucket>, 2> open_;  // one a type
};

}  // namespace

std::int64_t bytes_of(BucketType type) {
  return type == BucketType::fp64 ? 8 : 4;
}

GradientLayout lay_out(std::span<const GradientShape> shapes, std::span<const std::uint32_t> order,
                       const BucketSizes& sizes) {
  Packer packer(shapes.size(), sizes);
  for (const std::uint32_t p : order) {
    if (shapes[p].needed) packer.add(p, shapes[p]);
  }
  return std::move(packer).finish();
}

std::vector<std::uint32_t> reverse_order(std::size_t parameters) {
  std::vector<std::uint32_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

}  // namespace cox::detail
