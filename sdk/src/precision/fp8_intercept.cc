#include "sdk/src/precision/fp8_intercept.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <optional>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/precision/fp8_frame.h"
#include "sdk/src/precision/fp8_linear.h"
#include "sdk/src/precision/fp8_scope.h"

namespace cox::detail {
namespace {

using at::Scalar;
using at::Tensor;
using Bias = std::optional<Tensor>;

// The op again, further down: to autocast, then autograd.
using Passing = c10::impl::ExcludeDispatchKeyGuard;

bool is_leaf_parameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

bool is_weight(const Tensor& tensor) {
  return is_leaf_parameter(tensor) || (tensor.is_view() && is_leaf_parameter(tensor._base()));
}

bool is_fit(const Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

// A product a b, seen as x times a weight [N, K] transposed; of two weights or none, nothing.
Fp8Weight weight_of(const Tensor& a, const Tensor& b) {
  if (!is_fit(a) || !is_fit(b) || a.device() != b.device()) return Fp8Weight::none;
  const bool left = is_weight(a);
  if (left == is_weight(b)) return Fp8Weight::none;
  const Tensor& weight = left ? a : b;
  const Tensor& x = left ? b : a;
  const bool is_matrix = weight.dim() == 2 && (!left || x.dim() <= 2);
  const bool is_batch = weight.dim() == 3 && x.dim() == 3 && weight.size(0) == x.size(0);
  if (!is_matrix && !is_batch) return Fp8Weight::none;
  const std::int64_t inner = left ? x.size(x.dim() == 1 ? 0 : -2) : x.size(-1);
  if (inner != weight.size(left ? -1 : -2)) return Fp8Weight::none;  // torch says what is wrong
  return left ? Fp8Weight::left : Fp8Weight::right;
}

// x as rows [.., M, K], the weight as [.., N, K].
struct Operands {
  Tensor x;
  Tensor weight;
};
Operands operands_of(const Tensor& a, const Tensor& b, Fp8Weight side) {
  if (side == Fp8Weight::left) {
    return {b.dim() == 1 ? b.unsqueeze(0) : b.transpose(-2, -1), a};
  }
  const Tensor x = b.dim() == 3 ? a : a.reshape({-1, a.size(-1)});
  return {x, b.transpose(-2, -1)};
}

// What a b has to look like, from rows [.., M, N].
Tensor result_of(const Tensor& rows, const Tensor& a, const Tensor& b, Fp8Weight side) {
  if (side == Fp8Weight::left) return b.dim() == 1 ? rows.squeeze(0) : rows.transpose(-2, -1);
  if (b.dim() == 3 || a.dim() == 2) return rows;
  c10::DimVector sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  return rows.reshape(sizes);
}

bool is_worth_it(Fp8Block& block, const Operands& operands) {
  const std::int64_t batch = operands.weight.dim() == 3 ? operands.weight.size(0) : 1;
  return block.takes({operands.x.size(-2) * batch, operands.weight.size(-2), operands.x.size(-1)});
}

// What autocast casts to, if it is on. Ask before it is turned off.
std::optional<at::ScalarType> autocast_type(const Tensor& operand) {
  const at::DeviceType device = operand.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

const Fp8Frame::Product& as_first_time(const Fp8Frame& frame, std::size_t product) {
  if (product < frame.products.size()) return frame.products[product];
  throw Error(failed_precondition(
      "FP8: a function that ran again computed more matrix products than the first time (" +
      std::to_string(frame.products.size()) + "); it must compute the same each time"));
}

// Decides on a product that is seen for the first time, and notes it.
const Fp8Frame::Product& decide(Fp8Place& place, const Tensor& a, const Tensor& b) {
  Fp8Frame::Product& product = place.frame->products.emplace_back();
  product.weight = weight_of(a, b);
  if (product.weight == Fp8Weight::none) return product;
  const Operands operands = operands_of(a.detach(), b.detach(), product.weight);
  if (!is_worth_it(*place.block, operands)) {
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
  const Operands operands = operands_of(a, b, product.weight);
  const bool is_training = is_first && at::GradMode::is_enabled();  // an evaluation is no evidence
  const Fp8LinearPlan plan{place.block, place.next_in_fp8++,
                           cast.value_or(operands.x.scalar_type()), product.scale,
                           is_training ? Fp8Count::on : Fp8Count::off};
  return result_of(fp8_linear(operands.x, operands.weight, plan), a, b, product.weight);
}

// beta added + alpha product, in the product's type.
Tensor with_added(const Tensor& product, const Tensor& added, const Scalar& beta,
                  const Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const Tensor scaled = alpha.equal(1) ? product : product * alpha;
  if (beta.equal(0)) return scaled;  // then it is not read, whatever it holds
  return at::add(scaled, added.to(product.scalar_type()), beta);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return *product;
  return at::mm(a, b);
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return *product;
  return at::matmul(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return *product;
  return at::bmm(a, b);
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

Tensor addmm(const Tensor& added, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return with_added(*product, added, beta, alpha);
  return at::addmm(added, a, b, beta, alpha);
}

Tensor baddbmm(const Tensor& added, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  const Passing passing(fp8_key());
  if (auto product = in_fp8(a, b)) return with_added(*product, added, beta, alpha);
  return at::baddbmm(added, a, b, beta, alpha);
}

}  // namespace

c10::DispatchKey fp8_key() {
  return c10::DispatchKey::AutocastPrivateUse1;
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  library.impl("mm", mm);
  library.impl("matmul", matmul);
  library.impl("bmm", bmm);
  library.impl("linear", linear);
  library.impl("addmm", addmm);
  library.impl("baddbmm", baddbmm);
}

}  // namespace cox::detail
