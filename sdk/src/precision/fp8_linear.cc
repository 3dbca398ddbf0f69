#include "sdk/src/precision/fp8_linear.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include <utility>

#include "coxswain/error.h"

namespace cox::detail {
namespace {

// What backward needs besides x.
struct Fp8Backward final : torch::CustomClassHolder {
  std::shared_ptr<Fp8Block> block;
  std::size_t product = 0;
  Fp8Operand weight;
  at::Tensor x_scale;
  at::ScalarType x_type = at::kFloat;
  at::ScalarType weight_type = at::kFloat;
};

constexpr const char* kState = "fp8";

class Fp8LinearFunction final : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const Fp8LinearPlan& plan);
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list gradients);
};

at::Tensor Fp8LinearFunction::forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                                      const at::Tensor& weight, const Fp8LinearPlan& plan) {
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const Fp8Quantized input = quantize_tensor(x, FloatFormat::e4m3, plan.scale);
  if (plan.counting == Fp8Count::on) {
    plan.block->see(Fp8Side::activation, plan.product, input.seen);
  }
  auto state = c10::make_intrusive<Fp8Backward>();
  state->block = plan.block;
  state->product = plan.product;
  state->weight = plan.block->weight(weight);
  state->x_scale = plan.scale;
  state->x_type = x.scalar_type();
  state->weight_type = weight.scalar_type();
  const at::Tensor result =
      fp8_product(input.operand, state->weight.transposed(), plan.type, plan.block->means());
  ctx->save_for_backward({input.operand.codes});
  ctx->saved_data[kState] = at::IValue::make_capsule(std::move(state));
  return result;
}

torch::autograd::tensor_list Fp8LinearFunction::backward(torch::autograd::AutogradContext* ctx,
                                                         torch::autograd::tensor_list gradients) {
  if (at::GradMode::is_enabled()) {
    throw Error(failed_precondition(
        "FP8: gradients of gradients (create_graph) were asked for through a linear layer that ran "
        "in FP8; expected a block in fp32, bf16 or fp16 for that; forbid fp8 for it or run the "
        "pass outside of FP8"));
  }
  if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const auto capsule = ctx->saved_data[kState].toCapsule();
  const auto& state = static_cast<const Fp8Backward&>(*capsule);
  const Fp8Operand x{ctx->get_saved_variables()[0], state.x_scale};
  const at::Tensor scale = state.block->scale_for(Fp8Side::gradient, state.product, gradients[0]);
  const Fp8Quantized gradient = quantize_tensor(gradients[0], FloatFormat::e5m2, scale);
  state.block->see(Fp8Side::gradient, state.product, gradient.seen);
  const Fp8Means means = state.block->means();
  at::Tensor of_x;
  at::Tensor of_weight;
  if (ctx->needs_input_grad(0)) {
    of_x = fp8_product(gradient.operand, state.weight, state.x_type, means);
  }
  if (ctx->needs_input_grad(1)) {
    of_weight = fp8_product(gradient.operand.transposed(), x, at::kFloat, means);
    of_weight = of_weight.to(state.weight_type);
  }
  return {of_x, of_weight, at::Tensor()};
}

}  // namespace

at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const Fp8LinearPlan& plan) {
  return Fp8LinearFunction::apply(x, weight, plan);
}

}  // namespace cox::detail
