// Products in FP8 as an operator of LibTorch's, so that whoever sees operators (a tape, a recorded
// pass) can run one again with the same bits and needs to know nothing of FP8:
//
//   coxswain::fp8_product(x, weight, x_scale?, gradient_scale?, convolution, site)
//     -> result, codes and scale of x, codes and scale of the weight, what x lost
//
// Forward multiplies E4M3 by E4M3; of the result's gradient, cast to E5M2, the gradients of x and
// weight are E5M2 by E4M3. All is accumulated in float. On the CPU results are float; on a device
// they are bf16, as those of other narrow products, x may be so too, and gradients are given back
// in the types of x and weight. Autograd keeps the codes, one byte an element, in the order that
// backward products want, and neither x nor the weight. Scales that come from earlier steps
// (delayed scaling) are arguments; without them a tensor is scaled by its own magnitude. So the
// forward pass depends on its arguments alone and changes nothing; what x lost is told by its
// caller, once. The backward pass tells the site what its gradient lost. Gradients of gradients are
// refused with a message.
//
// Fp8Products calls it for products of a block. Any thread; but an Fp8Products belongs to the
// thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

// Runs the products of one block in FP8 that have exactly one parameter: mm, addmm, bmm, baddbmm
// and, where FP8 is emulated, convolutions; declines all others, and those that are not faster so
// on the device. `block` remembers each weight's magnitudes by the weight, not by order.
class Fp8Products final : public ProductCaller {
 public:
  explicit Fp8Products(std::shared_ptr<Fp8Block> block) : block_(std::move(block)) {}
  bool call(const c10::OperatorHandle& handle, torch::jit::Stack& stack) override;

 private:
  at::Tensor product(const at::Tensor& x, const at::Tensor& weight,
                     const c10::List<std::int64_t>& convolution);
  bool call_matrices(std::span<at::IValue> arguments, at::IValue& result);
  bool call_convolution(std::span<at::IValue> arguments, at::IValue& result);
  std::size_t number_of(const at::Tensor& weight);

  const std::shared_ptr<Fp8Block> block_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> numbers_;  // of weights, as first seen
};

}  // namespace cox::detail
