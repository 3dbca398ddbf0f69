// How much arithmetic an operator of LibTorch is, from its name and the sizes of its tensors:
// floating-point operations (FLOPs), a multiplication and an addition counting as two. What cannot
// be told from the name has no count, which is not the same as none.
//
// The counts are those of torch.utils.flop_counter (PyTorch), so that they can be compared with
// what others publish:
//   - only products count: of matrices, convolutions, attention, recurrent layers in one call.
//     Biases, activations, norms and sums of elements do not.
//   - attention in one call counts whole, whatever its mask: a causal one does not halve it. Its
//     backward pass makes the scores again and is 5 products to 2 of the forward pass.
//   - every other product's backward pass is one product of the same size for each of its two
//     operands that needs a gradient. (flop_counter does not divide the gradient of a grouped
//     convolution's weight by the groups; here it is divided, as the arithmetic is.)
//   - what is run again (recompute) does not count: these are FLOPs of the model.
// Pure functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace cox {

struct TensorShape {
  std::vector<std::int64_t> sizes;  // empty: a scalar, or a tensor that was left out
  bool needs_gradient = false;
};

enum class ConvolutionKind : std::uint8_t { none, plain, transposed };

// One call. `operands` are its arguments that are tensors, in the order of the operator's schema,
// those of lists one by one; an optional tensor that was left out keeps its place.
struct OperatorShapes {
  std::string_view name;  // "aten::addmm", without the overload
  std::vector<TensorShape> operands;
  std::vector<TensorShape> results;
  ConvolutionKind convolution = ConvolutionKind::none;
};

struct OperatorFlops {
  double forward = 0;
  double backward = 0;  // of the gradients that are needed
  double sum() const { return forward + backward; }
  friend bool operator==(const OperatorFlops&, const OperatorFlops&) = default;
};

// Returns nothing for an operator that has no count, and for sizes that do not fit its name.
std::optional<OperatorFlops> flops_of(const OperatorShapes& call);

}  // namespace cox
