// Logarithm and exponential from additions, multiplications and divisions alone, so that they give
// the same bits on every machine: the C library's differ with its version and the processor, and a
// decision that hangs on the last bit could not be replayed elsewhere. Pure.
#pragma once

namespace cox {

// Natural logarithm. Requires: x is positive, normal and finite. Error below 1e-15 relative to
// max(1, |log x|).
double portable_log(double x);

// e^x. Requires: |x| <= 64. Relative error below 1e-13.
double portable_exp(double x);

}  // namespace cox
