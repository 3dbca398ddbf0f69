#include "sdk/src/blocks/block_state.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "sdk/src/blocks/block_call.h"

namespace cox::detail {

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

// An observed block always takes the long way: what autocast does must not depend on whether this
// step measures.
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
