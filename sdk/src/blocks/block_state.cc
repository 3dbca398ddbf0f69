#include "sdk/src/blocks/block_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/hash.h"
#include "sdk/src/blocks/block_call.h"

namespace cox::detail {

std::uint64_t training_key(const torch::nn::Module& module) {
  Fnv1a64 key;
  for (const auto& part : module.modules()) key.add(part->is_training() ? "train" : "eval");
  return key.value();
}

void BlockMemory::set_action(MemoryAction action) {
  action_ = action;
  is_steered_ = true;
}

MemoryAction BlockMemory::effective_action() const {
  const bool runs_again = action_ == MemoryAction::recompute || action_ == MemoryAction::tile;
  return runs_again && pinned() ? MemoryAction::keep : action_;
}

std::shared_ptr<SavedTensorFrame> BlockMemory::offload_frame(const BlockState& state) const {
  return offload_ ? offload_(state) : nullptr;
}

bool BlockMemory::needs_check(std::uint64_t key) const {
  if (is_check_requested_) return true;
  const MemoryAction action = effective_action();
  const bool runs_again = action == MemoryAction::recompute || action == MemoryAction::tile;
  return runs_again && !edited_.contains(key);
}

void BlockMemory::passed(std::uint64_t key, std::vector<at::Tensor> edited_buffers) {
  is_check_requested_ = false;
  edited_.insert_or_assign(key, std::move(edited_buffers));
}

std::vector<at::Tensor> BlockMemory::edited_buffers(std::uint64_t key) const {
  const auto found = edited_.find(key);
  return found == edited_.end() ? std::vector<at::Tensor>() : found->second;
}

void BlockMemory::pin(std::string reason) {
  is_check_requested_ = false;
  const std::lock_guard lock(mutex_);
  if (!pinned_) pinned_ = std::move(reason);
}

void BlockMemory::unpin() {
  edited_.clear();
  const std::lock_guard lock(mutex_);
  pinned_.reset();
}

std::optional<std::string> BlockMemory::pinned() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

void BlockMemory::reset() {
  action_ = MemoryAction::keep;
  is_steered_ = false;
  is_check_requested_ = false;
  offload_ = nullptr;
  unpin();
}

void BlockState::observe(BlockSink* sink, BlockClock clock) {
  mode = MeasureMode::off;
  if (sink == nullptr) unhook_parameters();
  {
    const std::lock_guard lock(mutex_);
    sink_ = sink;
    now = clock;
  }
  update_gate();
}

// An observed block always goes through AttendedCall, because what autocast does must not depend on
// whether this step measures.
void BlockState::update_gate() {
  active = sink() != nullptr || mode != MeasureMode::off || memory.is_steered() ||
           memory.wants_check() || precision.is_steered() || health != nullptr;
}

BlockSink* BlockState::sink() {
  const std::lock_guard lock(mutex_);
  return sink_;
}

void BlockState::set_mode(MeasureMode wanted) {
  mode = wanted;
  update_gate();
}

void BlockState::set_action(MemoryAction action) {
  memory.set_action(action);
  update_gate();
}

void BlockState::set_precision(std::optional<Precision> format) {
  if (format) {
    precision.steer(*format);
  } else {
    precision.release();
  }
  update_gate();
}

void BlockState::set_health(std::shared_ptr<HealthLedger> ledger) {
  health = std::move(ledger);
  update_gate();
}

void BlockState::request_check() {
  memory.request_check();
  update_gate();
}

void BlockState::release() {
  memory.reset();
  precision.release();
  health.reset();
  observe(nullptr, nullptr);
}

void BlockState::report(const BlockMeasurement& measurement) noexcept {
  const std::lock_guard lock(mutex_);
  if (sink_ != nullptr) sink_->block_measured(id, measurement);
}

void BlockState::edge(BlockEdge edge) noexcept {
  const std::lock_guard lock(mutex_);
  if (sink_ != nullptr) sink_->block_edge(id, edge);
}

void BlockState::add_waiting(BlockCall* call) {
  if (hooks_.empty()) hook_parameters();
  const std::lock_guard lock(mutex_);
  waiting_.push_back(call);
}

void BlockState::remove_waiting(BlockCall* call) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(waiting_, call);
}

void BlockState::hook_parameters() {
  const auto owner = module.lock();
  if (!owner) return;
  for (const at::Tensor& parameter : owner->parameters()) {
    if (!parameter.requires_grad() || !parameter.is_leaf()) continue;
    const auto hook = [weak = weak_from_this()](const at::TensorBase&) {
      if (const auto state = weak.lock()) state->on_parameter_gradient();
    };
    hooks_.push_back({parameter, parameter.register_hook(hook)});
  }
}

void BlockState::unhook_parameters() {
  for (const ParameterHook& hook : hooks_) hook.parameter.remove_hook(hook.position);
  hooks_.clear();
}

void BlockState::on_parameter_gradient() noexcept {
  const std::lock_guard lock(mutex_);
  for (BlockCall* call : waiting_) {
    const bool has_edge = call->note_backward_end() && call->is_outermost();
    if (has_edge && sink_ != nullptr) sink_->block_edge(id, BlockEdge::backward_end);
  }
}

}  // namespace cox::detail
