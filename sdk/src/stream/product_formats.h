// Number formats of a program that nobody edited, as casts in its operator stream. A product (of
// matrices, a convolution, attention) whose operands are float runs in a narrow type instead:
//
//   mm(a, b)  ->  mm(a.to(bf16), b.to(bf16)).to(float)
//
// The casts are operators like any other: autograd gives them their gradients, a tape records them
// and runs them again, so a replay has the same formats without knowing of any. Results are given
// back in the type that the program expects. So no narrow tensor ever meets code that was not
// written for it, nothing is to be converted between blocks, and all that must stay wide does:
// norms, softmax, losses, sums, statistics, optimizers.
//
// A product stays as the program wrote it
// - under autocast or in a PrecisionScope of the program's own, whatever that says;
// - with gradients off: an evaluation, the power iteration of a spectral norm, the inside of a
//   custom Function;
// - with a vector for an operand, which gains nothing: a spectral norm's sigma, a head with one
//   output;
// - with operands that are not all float, or not dense.
// Pure but for the calling thread's autocast state. Any thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace cox::detail {

// Returns whether the operator is one of the products that formats are for. Looks its name up.
bool is_product(const c10::OperatorHandle& handle);

// Returns whether a call with these arguments, the last ones on the stack, is to run in another
// type than it was written in. REQUIRES for both: is_product(handle), and `type` is narrower than
// float.
bool is_to_be_narrowed(const c10::OperatorHandle& handle, const torch::jit::Stack& stack,
                       at::ScalarType type);
// Runs the call with its float operands cast to `type`, and its results cast back. The three are
// called as by user code. REQUIRES: is_to_be_narrowed().
void call_narrowed(const c10::OperatorHandle& handle, torch::jit::Stack& stack,
                   at::ScalarType type);

}  // namespace cox::detail
