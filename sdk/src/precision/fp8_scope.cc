#include "sdk/src/precision/fp8_scope.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/precision/fp8_operator.h"

namespace cox::detail {

// Fp8Frame keeps what the products of one call of a block did, in order, so that the call can be
// run again to the same bits. One thread at a time uses it.
class Fp8Frame {
 public:
  struct Product {
    Fp8Weight weight = Fp8Weight::none;
    at::Tensor scale;  // of the activation
  };
  std::vector<Product> products;
  std::vector<std::shared_ptr<Fp8Frame>> calls;  // scopes opened inside
};

namespace {

c10::DispatchKey fp8_key() {
  return c10::DispatchKey::AutocastPrivateUse1;
}

Fp8Scope*& innermost_fp8_scope() {
  thread_local Fp8Scope* scope = nullptr;
  return scope;
}

void set_interception(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(fp8_key(), included);
  c10::impl::tls_set_dispatch_key_excluded(fp8_key(), excluded);
}

// Returns the frame of a scope that opens inside of `outer`: a new one, or that of the first run.
std::shared_ptr<Fp8Frame> frame_inside(Fp8Scope& outer) {
  std::vector<std::shared_ptr<Fp8Frame>>& calls = outer.place().frame->calls;
  const std::size_t call = outer.place().next_call++;
  if (outer.pass() == Fp8Pass::first) calls.push_back(std::make_shared<Fp8Frame>());
  if (call < calls.size()) return calls[call];
  throw Error(failed_precondition(
      "FP8: expected a function that runs again to call " + std::to_string(calls.size()) +
      " blocks, as it did the first time, found more; it must compute the same each time"));
}

// fp8_linear() multiplies x [.., M, K] by a weight [.., N, K] transposed, in FP8, with gradients of
// our own: forward E4M3 times E4M3; of the gradient, cast to E5M2, grad_x = gradient times weight
// and grad_weight = gradient transposed times x, both accumulated in float. It keeps x in FP8 for
// backward (one byte an element) and the weight's codes, which it shares with the block.
struct Fp8LinearPlan {
  std::shared_ptr<Fp8Block> block;
  std::size_t product = 0;           // which of the block's
  at::ScalarType type = at::kFloat;  // of the result
  at::Tensor scale;                  // of x
  Fp8Count counting = Fp8Count::on;
};

// Fp8Backward is what backward needs besides x.
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

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(
          failed_precondition("FP8: gradients of gradients (create_graph) were asked for through a "
                              "linear layer that ran in FP8; expected a block in fp32, bf16 or "
                              "fp16 for that; forbid fp8 for it or run the pass outside of FP8"));
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
};

// Returns new memory, no view. REQUIRES: dimensions as above, one device, floating types.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const Fp8LinearPlan& plan) {
  return Fp8LinearFunction::apply(x, weight, plan);
}

using at::Scalar;
using at::Tensor;
using Bias = std::optional<Tensor>;

// Passes the operator on to the keys below ours: to autocast, then autograd.
using Passing = c10::impl::ExcludeDispatchKeyGuard;

// Returns the type that autocast casts to, if it is on. Call it before autocast is turned off.
std::optional<at::ScalarType> autocast_type(const Tensor& operand) {
  const at::DeviceType device = operand.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

const Fp8Frame::Product& as_first_time(const Fp8Frame& frame, std::size_t product) {
  if (product < frame.products.size()) return frame.products[product];
  throw Error(failed_precondition(
      "FP8: expected a function that runs again to compute " +
      std::to_string(frame.products.size()) +
      " matrix products, as it did the first time, found more; it must compute the same each "
      "time"));
}

// Decides on a product that is seen for the first time, and notes it.
const Fp8Frame::Product& decide(Fp8Place& place, const Tensor& a, const Tensor& b) {
  Fp8Frame::Product& product = place.frame->products.emplace_back();
  product.weight = fp8_weight_of(a, b);
  if (product.weight == Fp8Weight::none) return product;
  const Fp8Operands operands = fp8_operands_of(a.detach(), b.detach(), product.weight);
  if (!place.block->takes(operands.shape())) {
    product.weight = Fp8Weight::none;
  } else {
    product.scale = place.block->scale_for(Fp8Side::activation, place.next_in_fp8, operands.x);
  }
  return product;
}

// a b in FP8, or nothing. Our key is off, so what is called here is recorded by autograd as usual;
// reshaping happens around our function, whose own result must not be a view.
std::optional<Tensor> in_fp8(const Tensor& a, const Tensor& b) {
  Fp8Scope* scope = current_fp8();
  if (scope == nullptr || !scope->place().block) return std::nullopt;
  Fp8Place& place = scope->place();
  const bool is_first = scope->pass() == Fp8Pass::first;
  const std::size_t index = place.next_product++;
  const std::optional<at::ScalarType> cast = autocast_type(a);
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const Fp8Frame::Product product =
      is_first ? decide(place, a, b) : as_first_time(*place.frame, index);
  if (product.weight == Fp8Weight::none) return std::nullopt;
  const Fp8Operands operands = fp8_operands_of(a, b, product.weight);
  const bool is_training = is_first && at::GradMode::is_enabled();  // an evaluation is no evidence
  const Fp8LinearPlan plan{place.block, place.next_in_fp8++,
                           cast.value_or(operands.x.scalar_type()), product.scale,
                           is_training ? Fp8Count::on : Fp8Count::off};
  return fp8_result_of(fp8_linear(operands.x, operands.weight, plan), a, b, product.weight);
}

// beta added + alpha product, in the product's type.
Tensor with_added(const Tensor& product, const Tensor& added, const Scalar& beta,
                  const Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const Tensor scaled = alpha.equal(1) ? product : product * alpha;
  if (beta.equal(0)) return scaled;  // then it is not read, whatever it holds
  return at::add(scaled, added.to(product.scalar_type()), beta);
}

// A product that is Op of torch's, which has no part added.
template <Tensor (*Op)(const Tensor&, const Tensor&)>
Tensor product_of(const Tensor& a, const Tensor& b) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return *product;
  return Op(a, b);
}

// A product with a part added, as Op of torch's.
template <Tensor (*Op)(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>
Tensor sum_with_product(const Tensor& added, const Tensor& a, const Tensor& b, const Scalar& beta,
                        const Scalar& alpha) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return with_added(*product, added, beta, alpha);
  return Op(added, a, b, beta, alpha);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Bias& bias) {
  const Passing passing(fp8_key());
  if (weight.dim() == 2) {
    if (auto product = in_fp8(x, weight.t())) {
      return bias && bias->defined() ? with_added(*product, *bias, 1, 1) : *product;
    }
  }
  return at::linear(x, weight, bias);
}

}  // namespace

Fp8Scope::Fp8Scope(std::shared_ptr<Fp8Block> block) : outer_(innermost_fp8_scope()) {
  place_.block = std::move(block);
  place_.frame = outer_ != nullptr ? frame_inside(*outer_) : std::make_shared<Fp8Frame>();
  if (outer_ != nullptr) pass_ = outer_->pass();
  enter();
}

Fp8Scope::Fp8Scope(const std::optional<Fp8Place>& captured)
    : pass_(captured ? Fp8Pass::again : Fp8Pass::first), outer_(innermost_fp8_scope()) {
  place_ = captured ? *captured : Fp8Place{nullptr, std::make_shared<Fp8Frame>()};
  enter();
}

void Fp8Scope::enter() {
  was_included_ = c10::impl::tls_is_dispatch_key_included(fp8_key());
  was_excluded_ = c10::impl::tls_is_dispatch_key_excluded(fp8_key());
  const bool is_on = place_.block != nullptr;
  set_interception(is_on, !is_on);
  innermost_fp8_scope() = this;
}

Fp8Scope::~Fp8Scope() {
  innermost_fp8_scope() = outer_;
  set_interception(was_included_, was_excluded_);
}

Fp8Scope* current_fp8() {
  return innermost_fp8_scope();
}

std::optional<Fp8Place> capture_fp8() {
  Fp8Scope* scope = innermost_fp8_scope();
  if (scope == nullptr) return std::nullopt;
  return scope->place();
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  library.impl("mm", product_of<at::mm>);
  library.impl("matmul", product_of<at::matmul>);
  library.impl("bmm", product_of<at::bmm>);
  library.impl("linear", linear);
  library.impl("addmm", sum_with_product<at::addmm>);
  library.impl("baddbmm", sum_with_product<at::baddbmm>);
}

}  // namespace cox::detail
