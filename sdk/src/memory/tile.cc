#include "coxswain/tile.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "coxswain/detail/run_context.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/memory/recompute.h"

namespace cox {
namespace detail {
namespace {

bool drops_tile(TileRule rule) {
  if (!at::GradMode::is_enabled()) return false;
  if (current_context() != nullptr) {
    return current_action() == MemoryAction::tile && check_saved_tensor_engine().ok();
  }
  return rule == TileRule::and_outside_of_blocks && install_saved_tensor_engine().ok();
}

}  // namespace

class TileCall::Work {
 public:
  explicit Work(std::string_view name) : context_(inside()) {
    parts_.name = std::string(name);
    if (context_.state == nullptr) return;
    parts_.state = context_.state->shared_from_this();
    parts_.name = "block " + parts_.state->name + ", " + parts_.name;
  }

  void input(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    parts_.versions.add(tensor);
    devices_.push_back(tensor.device());
  }

  void begin(std::unique_ptr<Rerun> again) {
    parts_.again = std::move(again);
    if (parts_.state) add_module();
    parts_.execution = capture_state(devices_);
    frame_ = std::make_shared<RecomputeFrame>(std::move(parts_), RecomputeFrame::Mode::dropping);
    running_.emplace(context_);
    saving_.emplace(*frame_);
  }

 private:
  static RunContext inside() {
    RunContext context;
    if (const RunContext* outer = current_context()) context = *outer;
    context.outer = current_context();
    context.is_covered = true;
    return context;
  }

  void add_module() {
    const auto module = parts_.state->module.lock();
    if (!module) return;
    for (const at::Tensor& parameter : module->parameters()) input(parameter);
    parts_.buffers = BufferCopies(parts_.state->memory.edited_buffers(*module));
  }

  RunContext context_;
  RecomputeParts parts_;
  std::vector<at::Device> devices_;
  std::shared_ptr<RecomputeFrame> frame_;
  NoCastCache no_cast_cache_;
  std::optional<ContextScope> running_;
  std::optional<SavedTensorScope> saving_;
};

TileCall::TileCall(std::string_view name, TileRule rule) {
  if (drops_tile(rule)) work_ = std::make_unique<Work>(name);
}
TileCall::~TileCall() = default;

void TileCall::input(const at::Tensor& tensor) {
  work_->input(tensor);
}
void TileCall::begin(std::unique_ptr<Rerun> again) {
  work_->begin(std::move(again));
}
void TileCall::end() {
  work_.reset();
}

std::vector<at::Tensor> tiles_of(const at::Tensor& x, std::int64_t dim, std::int64_t n) {
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
                            dim);  // one node: the gradient is joined once, not added n times
}

at::Tensor join_tiles(const std::vector<at::Tensor>& tiles, std::int64_t dim) {
  return tiles.size() == 1 ? tiles.front() : at::cat(tiles, dim);
}

}  // namespace detail

namespace {

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

at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& targets, std::int64_t tiles,
                               const TiledCrossEntropyOptions& options) {
  check_shapes(hidden, weight, targets);
  const auto rows = detail::tiles_of(hidden.reshape({-1, hidden.size(-1)}), 0, tiles);
  const auto labels = detail::tiles_of(targets.reshape({-1}), 0, tiles);
  at::Tensor sum;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor loss = detail::call_tile(
        "tiled_cross_entropy", detail::TileRule::and_outside_of_blocks, &tile_loss, rows[i],
        labels[i], weight, options.bias, options.ignore_index, options.label_smoothing);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum / targets.ne(options.ignore_index).sum().to(sum.scalar_type());
}

}  // namespace cox
