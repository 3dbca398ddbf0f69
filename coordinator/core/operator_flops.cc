#include "coordinator/core/operator_flops.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace cox {
namespace {

using Flops = std::optional<OperatorFlops>;

double count(const TensorShape& shape) {
  double elements = 1;
  for (const std::int64_t size : shape.sizes) elements *= static_cast<double>(size);
  return elements;
}

double needed(const TensorShape& shape) {
  return shape.needs_gradient ? 1 : 0;
}

// Computes [.., m, k] by [.., k, n], or by a vector [k].
Flops product(const OperatorShapes& call, std::size_t first) {
  if (call.operands.size() < first + 2) return std::nullopt;
  const TensorShape& a = call.operands[first];
  const TensorShape& b = call.operands[first + 1];
  if (a.sizes.empty() || b.sizes.empty()) return std::nullopt;
  const double columns = b.sizes.size() > 1 ? static_cast<double>(b.sizes.back()) : 1;
  const double forward = 2 * count(a) * columns;
  return OperatorFlops{forward, forward * (needed(a) + needed(b))};
}

Flops matrices(const OperatorShapes& call) {
  return product(call, 0);
}

// Computes a product that is added to the first operand.
Flops added_matrices(const OperatorShapes& call) {
  return product(call, 1);
}

// Each element of the weight is multiplied once per place of the smaller image: of the result, or
// of the operand in a transposed convolution.
Flops convolution(const OperatorShapes& call) {
  if (call.operands.size() < 2 || call.results.empty()) return std::nullopt;
  const TensorShape& image = call.operands[0];
  const TensorShape& weight = call.operands[1];
  const bool is_transposed = call.convolution == ConvolutionKind::transposed;
  const auto& places = is_transposed ? image.sizes : call.results[0].sizes;
  if (weight.sizes.size() < 3 || image.sizes.size() != weight.sizes.size() ||
      places.size() != weight.sizes.size())
    return std::nullopt;
  double forward = 2 * count(weight) * static_cast<double>(image.sizes[0]);
  for (std::size_t d = 2; d < places.size(); ++d) forward *= static_cast<double>(places[d]);
  return OperatorFlops{forward, forward * (needed(image) + needed(weight))};
}

// Queries [.., q, d], keys [.., k, d], values [.., k, v]. Forward has two products: the scores, and
// the values weighted by the scores. Backward has five: the scores again, and the gradients of
// scores, values, queries and keys. The kernels compute all of these if one gradient is needed.
Flops attention(const OperatorShapes& call) {
  if (call.operands.size() < 3) return std::nullopt;
  const TensorShape& queries = call.operands[0];
  const TensorShape& keys = call.operands[1];
  const TensorShape& values = call.operands[2];
  if (queries.sizes.size() < 2 || keys.sizes.size() < 2 || values.sizes.size() < 2)
    return std::nullopt;
  const auto depth = static_cast<double>(queries.sizes.back());
  if (depth == 0) return OperatorFlops{};
  const double by_depth = 2 * count(queries) * static_cast<double>(keys.sizes.end()[-2]);
  const double by_values = by_depth / depth * static_cast<double>(values.sizes.back());
  const bool is_needed = queries.needs_gradient || keys.needs_gradient || values.needs_gradient;
  return OperatorFlops{by_depth + by_values, is_needed ? 3 * by_depth + 2 * by_values : 0};
}

// One layer in one direction has two weights, for the operand and for the hidden state. Every
// element of the sequence is multiplied by both. The hidden state passes on gradients if any are
// needed.
Flops recurrent_layer(const OperatorShapes& call) {
  if (call.operands.size() < 3) return std::nullopt;
  const TensorShape& sequence = call.operands[0];
  const TensorShape& of_operand = call.operands[1];
  const TensorShape& of_state = call.operands[2];
  if (sequence.sizes.size() < 2 || of_operand.sizes.size() != 2 || of_state.sizes.size() != 2)
    return std::nullopt;
  double elements = 1;  // vectors in the sequence
  for (std::size_t d = 0; d + 1 < sequence.sizes.size(); ++d)
    elements *= static_cast<double>(sequence.sizes[d]);
  const double left = 2 * elements * count(of_operand);
  const double right = 2 * elements * count(of_state);
  const bool is_needed =
      sequence.needs_gradient || of_operand.needs_gradient || of_state.needs_gradient;
  const double backward = left * (needed(sequence) + needed(of_operand)) +
                          right * ((is_needed ? 1 : 0) + needed(of_state));
  return OperatorFlops{left + right, backward};
}

// Computes x as rows [.., m, k] by the weight as rows [.., n, k]; or a convolution.
Flops narrow_product(const OperatorShapes& call) {
  if (call.convolution != ConvolutionKind::none) return convolution(call);
  if (call.operands.size() < 2) return std::nullopt;
  const TensorShape& x = call.operands[0];
  const TensorShape& weight = call.operands[1];
  if (x.sizes.size() < 2 || weight.sizes.size() < 2) return std::nullopt;
  const double forward = 2 * count(x) * static_cast<double>(weight.sizes.end()[-2]);
  return OperatorFlops{forward, forward * (needed(x) + needed(weight))};
}

struct Formula {
  std::string_view name;
  Flops (*flops)(const OperatorShapes&);
};

// Sorted by name.
constexpr std::array kFormulas = std::to_array<Formula>({
    {"aten::_addmm_activation", added_matrices},
    {"aten::_convolution", convolution},
    {"aten::_int_mm", matrices},
    {"aten::_scaled_dot_product_cudnn_attention", attention},
    {"aten::_scaled_dot_product_efficient_attention", attention},
    {"aten::_scaled_dot_product_flash_attention", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_fused_attention_overrideable", attention},
    {"aten::_scaled_mm", matrices},
    {"aten::addbmm", added_matrices},
    {"aten::addmm", added_matrices},
    {"aten::addmm_", added_matrices},
    {"aten::addmv", added_matrices},
    {"aten::baddbmm", added_matrices},
    {"aten::baddbmm_", added_matrices},
    {"aten::bmm", matrices},
    {"aten::convolution", convolution},
    {"aten::convolution_overrideable", convolution},
    {"aten::dot", matrices},
    {"aten::mkldnn_rnn_layer", recurrent_layer},
    {"aten::mm", matrices},
    {"aten::mv", matrices},
    {"aten::vdot", matrices},
    {"coxswain::fp8_product", narrow_product},
});
static_assert(std::ranges::is_sorted(kFormulas, {}, &Formula::name));

}  // namespace

std::optional<OperatorFlops> flops_of(const OperatorShapes& call) {
  const auto found = std::ranges::lower_bound(kFormulas, call.name, {}, &Formula::name);
  if (found == kFormulas.end() || found->name != call.name) return std::nullopt;
  return found->flops(call);
}

}  // namespace cox
