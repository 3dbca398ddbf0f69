#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coxswain/detail/attended_call.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/memory/recompute.h"

namespace cox::detail {
namespace {

bool is_among(const at::Tensor& tensor, const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors,
                             [&](const at::Tensor& other) { return tensor.is_same(other); });
}

}  // namespace

// Work is the part of a call that saves under a frame of ours.
class MemoryCall::Work {
 public:
  Work(std::shared_ptr<BlockState> state, MemoryAction action,
       std::shared_ptr<torch::nn::Module> module)
      : state_(std::move(state)), action_(action), module_(std::move(module)) {
    const bool may_rerun = action != MemoryAction::offload || state_->memory.wants_check();
    if (may_rerun) key_ = training_key(*module_);
    is_check_ = may_rerun && state_->memory.needs_check(key_);
  }

  ~Work() { leave(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  bool runs_again() const { return is_check_ || action_ == MemoryAction::recompute; }
  bool is_needed() const { return runs_again() || action_ == MemoryAction::offload; }

  void input(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    versions_.add(tensor);
    devices_.push_back(tensor.device());
  }

  void begin(std::unique_ptr<Rerun> again) {
    if (again) {
      open_recompute(std::move(again));
    } else {
      frame_ = state_->memory.offload_frame(*state_);
    }
    if (frame_) saving_.emplace(*frame_);
  }

  void end() {
    leave();
    if (!is_check_) return;
    std::vector<at::Tensor> edited = all_buffers_.keep_edited();
    if (auto different = recompute_->check(std::move(all_buffers_))) {
      state_->memory.pin(std::move(*different));
      return;
    }
    state_->memory.passed(key_, std::move(edited));
    if (action_ == MemoryAction::recompute) recompute_->drop_held();
  }

 private:
  void leave() noexcept {
    if (!saving_) return;
    saving_.reset();
    frame_->leave();
  }

  void open_recompute(std::unique_ptr<Rerun> again) {
    for (const at::Tensor& parameter : module_->parameters()) input(parameter);
    RecomputeParts parts{.name = "block " + state_->name,
                         .state = state_,
                         .again = std::move(again),
                         .execution = capture_state(devices_),
                         .versions = std::move(versions_),
                         .buffers = {}};
    if (is_check_) {
      all_buffers_ = BufferCopies(module_->buffers());
    } else {
      const std::vector<at::Tensor> edited = state_->memory.edited_buffers(key_);
      for (const at::Tensor& buffer : module_->buffers()) {
        if (!is_among(buffer, edited)) parts.versions.add(buffer);
      }
      parts.buffers = BufferCopies(edited);
    }
    const auto mode = is_check_ ? RecomputeFrame::Mode::holding : RecomputeFrame::Mode::dropping;
    recompute_ = std::make_shared<RecomputeFrame>(std::move(parts), mode);
    frame_ = recompute_;
  }

  const std::shared_ptr<BlockState> state_;
  const MemoryAction action_;
  const std::shared_ptr<torch::nn::Module> module_;
  std::uint64_t key_ = 0;
  bool is_check_ = false;
  std::vector<at::Device> devices_;
  TensorVersions versions_;
  BufferCopies all_buffers_;
  std::shared_ptr<RecomputeFrame> recompute_;
  std::shared_ptr<SavedTensorFrame> frame_;
  std::optional<SavedTensorScope> saving_;
};

MemoryCall::MemoryCall(const std::shared_ptr<BlockGate>& gate)
    : state_(static_cast<BlockState&>(*gate)) {
  const RunContext* outer = current_context();
  context_ = {&state_, state_.memory.effective_action(), outer != nullptr && outer->is_covered,
              outer != nullptr && outer->is_rerun, outer};
  context_.in_fp32 = outer != nullptr && outer->in_fp32;
  const bool may_act = !context_.is_covered && at::GradMode::is_enabled() &&
                       (context_.action != MemoryAction::keep || state_.memory.wants_check());
  const auto module = may_act ? state_.module.lock() : nullptr;
  if (module && check_saved_tensor_engine().ok()) {
    auto work =
        std::make_unique<Work>(std::static_pointer_cast<BlockState>(gate), context_.action, module);
    if (work->is_needed()) work_ = std::move(work);
  }
  runs_again_ = work_ && work_->runs_again();
  context_.is_covered = context_.is_covered || runs_again_;
  scope_.emplace(context_);
}

MemoryCall::~MemoryCall() = default;

void MemoryCall::input(const at::Tensor& tensor) {
  if (runs_again_) work_->input(tensor);
}

void MemoryCall::begin(std::unique_ptr<Rerun> again) {
  if (work_) work_->begin(std::move(again));
}

void MemoryCall::end() {
  if (work_) work_->end();
}

}  // namespace cox::detail
