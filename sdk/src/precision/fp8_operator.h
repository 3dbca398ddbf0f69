// FP8 products as an operator of LibTorch. A tape or a recorded pass repeats the operator with the
// same bits and needs to know nothing of FP8:
//
//   coxswain::fp8_product(x, weight, x_scale?, gradient_scale?, convolution, site)
//     -> result, codes and scale of x, codes and scale of the weight, what x lost
//
// Fp8Products calls the operator for products of a block. The operator may run on any thread; an
// Fp8Products belongs to the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

// Fp8Products runs one block's products with exactly one parameter in FP8: mm, addmm, bmm, baddbmm
// and, if FP8 is emulated, convolutions. Declines all others, and products that FP8 would not speed
// up on the device. `block` keeps magnitudes by weight, not by order.
//
// Forward multiplies E4M3 by E4M3. Backward casts the result's gradient to E5M2; the gradients of x
// and weight are E5M2 by E4M3. All sums are in float. On the CPU results are float. On a device
// results are bf16 like those of other narrow products, x may be bf16 too, and gradients have the
// types of x and weight. Autograd keeps neither x nor the weight, only their codes, one byte an
// element, in the order for backward products.
//
// Scales of earlier steps (delayed scaling) are arguments; without them a tensor is scaled by its
// own magnitude. So the forward pass depends on its arguments alone and has no side effects. The
// caller counts the loss of x once; the backward pass reports the gradient's loss to the site. A
// gradient of a gradient throws with a message.
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
  std::unordered_map<const c10::StorageImpl*, std::size_t> numbers_;  // by weight
};

}  // namespace cox::detail
