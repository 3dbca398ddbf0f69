#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "coxswain/detail/attended_call.h"
#include "coxswain/detail/run_context.h"
#include "sdk/src/blocks/block_state.h"
#include "sdk/src/precision/fp8_scope.h"

namespace cox::detail {
namespace {

bool is_narrower(at::ScalarType type, at::ScalarType than) {
  return c10::isFloatingType(type) && c10::elementSize(type) < c10::elementSize(than);
}

std::optional<at::Tensor> floating_parameter(const BlockState& state) {
  const auto module = state.module.lock();
  if (!module) return std::nullopt;
  for (const at::Tensor& parameter : module->parameters()) {
    if (c10::isFloatingType(parameter.scalar_type())) return parameter;
  }
  return std::nullopt;
}

}  // namespace

bool is_too_narrow(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor) {
  const auto& state = static_cast<const BlockState&>(*gate);
  if (state.precision.format() != Precision::fp32 || !tensor.defined()) return false;
  if (tensor.scalar_type() != at::kBFloat16 && tensor.scalar_type() != at::kHalf) return false;
  const auto parameter = floating_parameter(state);
  return parameter && is_narrower(tensor.scalar_type(), parameter->scalar_type());
}

at::Tensor widened_for(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor) {
  if (!is_too_narrow(gate, tensor)) return tensor;
  const auto& state = static_cast<const BlockState&>(*gate);
  return tensor.to(floating_parameter(state)->scalar_type());
}

PrecisionCall::PrecisionCall(const std::shared_ptr<BlockGate>& gate)
    : state_(static_cast<BlockState&>(*gate)), format_(state_.precision.format()) {
  const RunContext* context = current_context();
  if (format_ && context != nullptr && context->in_fp32) format_ = Precision::fp32;
}

PrecisionCall::~PrecisionCall() {
  end();
}

void PrecisionCall::input(const at::Tensor& tensor) {
  if (!format_ || !tensor.defined()) return;
  if (!tensor.device().is_cpu()) device_ = tensor.device().type();
  if (!c10::isFloatingType(tensor.scalar_type())) return;
  width_ = width_ ? c10::promoteTypes(*width_, tensor.scalar_type()) : tensor.scalar_type();
}

void PrecisionCall::take_from_parameters() {
  const auto parameter = floating_parameter(state_);
  if (!parameter) return;
  width_ = parameter->scalar_type();
  device_ = parameter->device().type();
}

void PrecisionCall::begin() {
  if (!format_) return;
  if (!width_) take_from_parameters();
  scope_.emplace(device_, *format_);
  // Opens a scope around blocks in other formats too, because blocks inside may be in FP8 and run
  // again with this one.
  const std::shared_ptr<Fp8Block>& fp8 = state_.precision.fp8();
  if (fp8 == nullptr && current_fp8() == nullptr) return;
  fp8_ = std::make_unique<Fp8Scope>(format_ == Precision::fp8 ? fp8 : nullptr);
}

void PrecisionCall::end() {
  fp8_.reset();
  scope_.reset();
}

at::Tensor PrecisionCall::output(const at::Tensor& tensor) const {
  if (!tensor.defined() || !width_ || !is_narrower(tensor.scalar_type(), *width_)) return tensor;
  return tensor.to(*width_);
}

}  // namespace cox::detail
