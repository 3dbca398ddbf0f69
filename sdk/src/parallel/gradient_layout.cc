#include "sdk/src/parallel/gradient_layout.h"

#include <algorithm>
#include <array>
#include <limits>
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
  std::array<std::optional<GradientBucket>, 2> open_;  // one for each type
};

constexpr std::int64_t kSizes[] = {std::int64_t{1} << 18, std::int64_t{1} << 20,
                                   std::int64_t{4} << 20, std::int64_t{25} << 20};

BucketSizes sizes_of(std::int64_t bytes) {
  return {std::min<std::int64_t>(bytes, 1 << 20), bytes};
}

std::vector<BucketSizes> candidates_for(std::int64_t total_bytes, std::int64_t fixed_bytes) {
  if (fixed_bytes > 0) return {sizes_of(fixed_bytes)};
  std::vector<BucketSizes> candidates;
  for (const std::int64_t bytes : kSizes) {
    candidates.push_back(sizes_of(bytes));
    if (bytes >= total_bytes) break;  // larger sizes give one bucket
  }
  return candidates;
}

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

MissingGradients::MissingGradients(const GradientLayout& layout)
    : layout_(layout), has_come_(layout.places.size()) {
  for (const GradientBucket& bucket : layout.buckets) missing_.push_back(bucket.parameters.size());
}

void MissingGradients::note(std::size_t parameter) {
  has_come_[parameter] = true;
  --missing_[layout_.places[parameter].bucket];
}

std::size_t MissingGradients::complete_from(std::size_t next) const {
  while (next < missing_.size() && missing_[next] == 0) ++next;
  return next;
}

std::vector<std::uint32_t> reverse_order(std::size_t parameters) {
  std::vector<std::uint32_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

std::vector<std::uint32_t> completed(std::span<const std::uint32_t> order, std::size_t parameters) {
  std::vector<std::uint32_t> all(order.begin(), order.end());
  std::vector<bool> seen(parameters);
  for (const std::uint32_t p : order) seen[p] = true;
  for (const std::uint32_t p : reverse_order(parameters)) {
    if (!seen[p]) all.push_back(p);
  }
  return all;
}

BucketTuning::BucketTuning(std::size_t parameters, std::int64_t total_bytes,
                           std::int64_t fixed_bytes)
    : candidates_(candidates_for(total_bytes, fixed_bytes)),
      seconds_(candidates_.size(), std::numeric_limits<double>::infinity()) {
  choice_ = {reverse_order(parameters), candidates_.front()};
}

void BucketTuning::restore(const BucketChoice& choice) {
  choice_ = choice;
  over_ = true;
}

bool BucketTuning::learn_order(std::span<const std::uint32_t> order) {
  if (!wants_order()) return false;
  if (order.empty() && ++steps_ < kStepsForOrder) return false;
  choice_.order = completed(order, choice_.order.size());
  has_order_ = true;
  steps_ = 0;
  over_ = candidates_.size() == 1;
  return true;
}

bool BucketTuning::learn_cost(double seconds) {
  if (over_ || !has_order_) return false;
  ++steps_;
  // The first step with a new layout touches its memory for the first time.
  if (steps_ > 1) seconds_[trying_] = std::min(seconds_[trying_], seconds);
  return steps_ == kStepsPerSize && next_size();
}

bool BucketTuning::next_size() {
  steps_ = 0;
  if (++trying_ < candidates_.size()) {
    choice_.sizes = candidates_[trying_];
    return true;
  }
  const auto best = std::ranges::min_element(seconds_);
  choice_.sizes = candidates_[static_cast<std::size_t>(best - seconds_.begin())];
  over_ = true;
  return true;
}

}  // namespace cox::detail
