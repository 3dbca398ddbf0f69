// Number formats of a program that nobody edited, as casts in its operator stream.
//
// On the CPU a product (of matrices, a convolution, attention) whose operands are float runs in a
// narrow type instead:
//
//   mm(a, b)  ->  mm(a.to(bf16), b.to(bf16)).to(float)
//
// Results are given back in the type that the program expects. So no narrow tensor ever meets code
// that was not written for it, nothing is to be converted between blocks, and all that must stay
// wide does: norms, softmax, losses, sums, statistics, optimizers.
//
// On CUDA, where memory is what most operators wait for, results stay narrow, by LibTorch's own
// rules: an operator that autocast knows runs as under autocast of the block's type. Where narrow
// tensors reach a block that stays in float and meet wide ones, it runs as under autocast to float.
// Autocast's cache of weights is off. What the program gets is what it would get under autocast.
//
// The casts are operators like any other: autograd gives them their gradients, a tape records them
// and runs them again, so a replay has the same formats without knowing of any.
//
// An operator stays as the program wrote it
// - under autocast or in a PrecisionScope of the program's own, whatever that says;
// - with gradients off: an evaluation, the power iteration of a spectral norm, the inside of a
//   custom Function; where narrow and wide tensors meet there, on CUDA, it runs in float;
// - with a vector for an operand, which gains nothing on the CPU: a spectral norm's sigma, a head
//   with one output;
// - with operands that are not all float, or not dense.
// Pure but for the calling thread's autocast state. Any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace cox::detail {

// Returns whether the operator is one of the products that formats are for. Looks its name up.
bool is_product(const c10::OperatorHandle& handle);

// Returns whether a call with these arguments, the last ones on the stack, is to run in another
// type than it was written in, on the CPU, or as FP8 may. REQUIRES for both: is_product(handle),
// and `type` is narrower than float.
bool is_to_be_narrowed(const c10::OperatorHandle& handle, const torch::jit::Stack& stack,
                       at::ScalarType type);
// Runs the call with its float operands cast to `type`, and its results cast back. The three are
// called as by user code. REQUIRES: is_to_be_narrowed().
void call_narrowed(const c10::OperatorHandle& handle, torch::jit::Stack& stack,
                   at::ScalarType type);

// Returns whether autocast of CUDA has a kernel of its own for the operator.
bool is_known_to_autocast(const c10::OperatorHandle& handle);
// Returns whether that kernel is for the narrow type, and has parameters for operands.
bool is_narrowed_by_autocast(const c10::OperatorHandle& handle);
// Casts a convolution's wide bias to the type of its narrow input, as the function around the
// product itself wants it; for a block whose products somebody else computes.
void let_bias_follow(const c10::OperatorHandle& handle, torch::jit::Stack& stack);
// Returns in which type autocast is to run a call with these arguments; none where it is not.
// `type`: the block's. REQUIRES: is_known_to_autocast(handle).
std::optional<at::ScalarType> autocast_type_of(const c10::OperatorHandle& handle,
                                               const torch::jit::Stack& stack, at::ScalarType type);
// Calls autocast's kernel, which casts and calls the operator again; `keys`: those below the
// caller's. Casts of parameters come first: whoever runs these operators again finds the same first
// one of a block.
void call_under_autocast(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                         torch::jit::Stack& stack, at::ScalarType type);
// Whether the calling thread is in such a call, whose operators have their types.
bool is_under_autocast_call();

}  // namespace cox::detail
