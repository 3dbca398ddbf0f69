// The arithmetic of an operator of LibTorch, from its name and the sizes of its tensors:
// floating-point operations (FLOPs), a multiplication and an addition counting as two. An operator
// without a formula has no count, which differs from a count of zero. Pure functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace cox {

struct TensorShape {
  std::vector<std::int64_t> sizes;  // empty: a scalar, or a tensor left out
  bool needs_gradient = false;
};

enum class ConvolutionKind : std::uint8_t { none, plain, transposed };

// OperatorShapes is one call. `operands` has the call's tensor arguments in the order of the
// operator's schema, with lists expanded. An omitted optional tensor keeps its place, without
// sizes.
struct OperatorShapes {
  std::string_view name;  // "aten::addmm", without the overload
  std::vector<TensorShape> operands;
  std::vector<TensorShape> results;
  ConvolutionKind convolution = ConvolutionKind::none;
};

// OperatorFlops counts like torch.utils.flop_counter (PyTorch), so that counts can be compared with
// published ones:
//
//   - Only products count: of matrices, convolutions, attention, recurrent layers in one call.
//     Biases, activations, norms and sums of elements do not.
//   - Attention in one call counts whole, whatever its mask: a causal mask does not halve it.
//     The backward pass makes the scores again and is 5 products to 2 of the forward pass.
//   - The backward pass of every other product is one product of the same size for each of its two
//     operands that needs a gradient. flop_counter does not divide the gradient of a grouped
//     convolution's weight by the groups; the count here does, like the arithmetic.
//   - Recomputed operators do not count: these are FLOPs of the model.
struct OperatorFlops {
  double forward = 0;
  double backward = 0;  // of the needed gradients
  double sum() const { return forward + backward; }
  friend bool operator==(const OperatorFlops&, const OperatorFlops&) = default;
};

// Returns nothing for an operator without a count, and for sizes that do not fit the name.
std::optional<OperatorFlops> flops_of(const OperatorShapes& call);

}  // namespace cox
