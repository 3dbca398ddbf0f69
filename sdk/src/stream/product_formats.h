// Number formats of an unmodified program, as casts in its operator stream. On the CPU, products
// run narrow and return wide results. On CUDA, operators run as under autocast. Pure except for the
// calling thread's autocast state. Any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace cox::detail {

// On the CPU, a product (of matrices, a convolution, attention) with float operands runs in a
// narrow type:
//
//   mm(a, b)  ->  mm(a.to(bf16), b.to(bf16)).to(float)
//
// The result has the program's type. So narrow tensors meet only code written for narrow tensors,
// and blocks need no conversions between them. Norms, softmax, losses, sums, statistics and
// optimizers stay wide.
//
// On CUDA, where most operators wait for memory, results stay narrow by LibTorch's own rules. An
// operator known to autocast runs as under autocast of the block's type. Narrow tensors may reach a
// block that stays in float; if they meet wide ones there, the operator runs as under autocast to
// float. Autocast's cache of weights is off. The program gets the results of autocast.
//
// The casts are ordinary operators: autograd differentiates them, and a tape records and replays
// them. So a replay has the same formats.
//
// An operator stays as the program wrote it
// - under autocast or in a PrecisionScope of the program;
// - with gradients off: an evaluation, the power iteration of a spectral norm, the inside of a
//   custom Function. On CUDA, it runs in float if narrow and wide tensors meet;
// - with a vector operand, which gains nothing on the CPU: a spectral norm's sigma, a head with one
//   output;
// - with operands that are not all float, or not dense.

// Returns whether formats apply to the operator, a product. Looks its name up.
bool is_product(const c10::OperatorHandle& handle);

// Returns whether a call with these arguments, the last ones on the stack, shall run in a narrower
// type on the CPU, or may run as FP8. REQUIRES: is_product(handle), and `type` is narrower than
// float.
bool is_to_be_narrowed(const c10::OperatorHandle& handle, const torch::jit::Stack& stack,
                       at::ScalarType type);
// Runs the call with float operands cast to `type`, and casts the results back. The stream shows
// the casts and the product like calls of user code. REQUIRES: is_to_be_narrowed().
void call_narrowed(const c10::OperatorHandle& handle, torch::jit::Stack& stack,
                   at::ScalarType type);

// Returns whether CUDA's autocast has a kernel for the operator.
bool is_known_to_autocast(const c10::OperatorHandle& handle);
// Returns whether autocast's kernel is for the narrow type, and has parameters as operands.
bool is_narrowed_by_autocast(const c10::OperatorHandle& handle);
// Casts a convolution's wide bias to the type of its narrow input, as the function around the
// product requires. For a block whose products a ProductCaller computes.
void let_bias_follow(const c10::OperatorHandle& handle, torch::jit::Stack& stack);
// Returns the type in which autocast shall run a call with these arguments, or none. `type` is the
// block's. REQUIRES: is_known_to_autocast(handle).
std::optional<at::ScalarType> autocast_type_of(const c10::OperatorHandle& handle,
                                               const torch::jit::Stack& stack, at::ScalarType type);
// Calls autocast's kernel, which casts and calls the operator again. `keys`: those below the
// caller's. Casts parameters first, so that a replay finds the same first parameter of a block.
void call_under_autocast(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                         torch::jit::Stack& stack, at::ScalarType type);
// Returns whether the calling thread is inside call_under_autocast().
bool is_under_autocast_call();

}  // namespace cox::detail
