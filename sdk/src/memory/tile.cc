#include "coxswain/tile.h"

#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape.h"

namespace cox {
namespace {

using detail::SavedTensorFrame;
using detail::Tape;
using detail::TapeScope;
using detail::TileDrop;

// Tile is one tile, from its construction to its destruction. Without a follower of the model's
// blocks a tile has a tape of its own.
class Tile {
 public:
  Tile(std::string_view name, TileDrop drop) {
    if (!at::GradMode::is_enabled()) return;
    if (SavedTensorFrame* frame = detail::innermost_frame()) {
      if (frame->begin_tile(name, drop)) frame_ = frame;
    } else if (drop == TileDrop::always && detail::install_saved_tensor_engine().ok()) {
      tape_ = Tape::make(std::string(name));
      recording_.emplace(*tape_);
    }
  }
  ~Tile() {
    if (frame_ != nullptr) frame_->end_tile();
    recording_.reset();
    if (tape_ != nullptr) tape_->close();
  }
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;

 private:
  SavedTensorFrame* frame_ = nullptr;
  std::shared_ptr<Tape> tape_;
  std::optional<TapeScope> recording_;
};

// Returns n parts of near-equal length along dim, the longer ones first; fewer parts if the
// dimension is shorter than n.
std::vector<at::Tensor> parts_of(const at::Tensor& x, std::int64_t dim, std::int64_t n) {
  if (!x.defined() || dim >= x.dim() || dim < -x.dim()) {
    throw Error(invalid_argument("tile: expected a tensor with a dimension " + std::to_string(dim) +
                                 ", found one of " +
                                 (x.defined() ? std::to_string(x.dim()) : "no") + " dimensions"));
  }
  if (n < 1) {
    throw Error(invalid_argument("tile: expected at least 1 tile, found " + std::to_string(n)));
  }
  const std::int64_t length = x.size(dim);
  const std::int64_t count = std::max<std::int64_t>(1, std::min(n, length));
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.push_back(length / count + (i < length % count ? 1 : 0));
  }
  return x.split_with_sizes(lengths,
                            dim);  // one node: joins the gradient once instead of n additions
}

at::Tensor joined(const std::vector<at::Tensor>& tiles, std::int64_t dim) {
  return tiles.size() == 1 ? tiles.front() : at::cat(tiles, dim);
}

// Returns type and sizes, as "Float[2, 3]".
std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(c10::toString(tensor.scalar_type()), tensor.sizes());
}

void check_shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  const bool fits = hidden.defined() && weight.defined() && targets.defined() &&
                    hidden.dim() >= 2 && weight.dim() == 2 && weight.size(1) == hidden.size(-1) &&
                    targets.scalar_type() == at::kLong &&
                    targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1);
  if (fits) return;
  throw Error(invalid_argument(
      "tiled_cross_entropy: expected hidden [..., width], weight [classes, width] "
      "and int64 targets of hidden's leading sizes, found hidden " +
      text_of(hidden) + ", weight " + text_of(weight) + " and targets " + text_of(targets)));
}

// Returns the sum over the rows of one tile.
at::Tensor tile_loss(const at::Tensor& hidden, const at::Tensor& targets, const at::Tensor& weight,
                     const at::Tensor& bias, std::int64_t ignore_index, double label_smoothing) {
  const at::Tensor logits = at::linear(hidden, weight, bias);
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(logits.to(type), targets, {}, at::Reduction::Sum, ignore_index,
                                label_smoothing);
}

}  // namespace

at::Tensor tile(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x,
                std::int64_t dim, std::int64_t n) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& part : parts_of(x, dim, n)) {
    const Tile open("tile", TileDrop::where_planned);
    results.push_back(f(part));
  }
  return joined(results, dim);
}

at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& targets, std::int64_t tiles,
                               const TiledCrossEntropyOptions& options) {
  check_shapes(hidden, weight, targets);
  const auto rows = parts_of(hidden.reshape({-1, hidden.size(-1)}), 0, tiles);
  const auto labels = parts_of(targets.reshape({-1}), 0, tiles);
  at::Tensor sum;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Tile open("tiled_cross_entropy", TileDrop::always);
    const at::Tensor loss = tile_loss(rows[i], labels[i], weight, options.bias,
                                      options.ignore_index, options.label_smoothing);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum / targets.ne(options.ignore_index).sum().to(sum.scalar_type());
}

}  // namespace cox
