#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "coxswain/detail/attended_call.h"
#include "coxswain/detail/run_context.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/precision/health_ledger.h"

namespace cox::detail {
namespace {

HealthCall*& innermost() {
  thread_local HealthCall* call = nullptr;
  return call;
}

bool computes_in_fp16(at::DeviceType device) {
  return at::autocast::is_autocast_enabled(device) &&
         at::autocast::get_autocast_dtype(device) == at::kHalf;
}

}  // namespace

HealthCall::HealthCall(const std::shared_ptr<BlockGate>& gate) noexcept {
  const auto& state = static_cast<const BlockState&>(*gate);
  if (!state.health || !state.health->is_open() || !at::GradMode::is_enabled()) return;
  const RunContext* context = current_context();
  if (context != nullptr && context->is_rerun) return;
  try {
    std::optional<std::size_t> outer;
    if (innermost() != nullptr) outer = innermost()->call_;
    call_ = state.health->begin_call(state.id, outer);
  } catch (...) {
    return;
  }
  ledger_ = state.health;
  outer_ = std::exchange(innermost(), this);
  is_innermost_ = true;
}

HealthCall::~HealthCall() {
  drop();
}

void HealthCall::drop() noexcept {
  if (is_innermost_) innermost() = outer_;
  is_innermost_ = false;
  ledger_.reset();
}

void HealthCall::input(const at::Tensor& tensor) noexcept try {
  if (!ledger_ || !tensor.defined()) return;
  if (!tensor.is_cpu()) is_on_cpu_ = false;
  ledger_->input(call_, tensor);
} catch (...) {
  drop();
}

void HealthCall::begin() noexcept try {
  if (!ledger_) return;
  if (computes_in_fp16(is_on_cpu_ ? at::kCPU : at::kCUDA)) ledger_->computes_in_fp16(call_);
} catch (...) {
  drop();
}

void HealthCall::output(const at::Tensor& tensor) noexcept try {
  if (ledger_) ledger_->output(call_, tensor);
} catch (...) {
  drop();
}

void HealthCall::finish() noexcept try {
  if (ledger_) ledger_->end_call(call_);
  drop();
} catch (...) {
  drop();
}

}  // namespace cox::detail
