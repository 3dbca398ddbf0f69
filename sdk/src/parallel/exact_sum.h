// Exact sums of gradients, the arithmetic of reproducible mode. The sum has the same bits for any
// order of micro-batches and any ranks. Pure functions, any thread. Loops run on torch's threads,
// which change no bit.
//
//   every micro-batch, any rank:  seen = deposit(gradient, weight, bin, accumulator)
//   all ranks:                    sum of accumulators; largest amax; does it fit everywhere?
//   fits:         withdraw(accumulator, total weight, gradient)
//   does not:     the whole step again, from empty accumulators, in next_bin()
//   either way:   bin = next_bin(bin, largest amax, micro-batches of the step to come)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// ExactBin is the bin of one parameter: magnitudes below 2^ceiling fit, and sums are multiples of
// the quantum 2^(ceiling + count_bits - 52).
//
// deposit() multiplies each micro-batch's gradient by its weight, rounds the product to a multiple
// of the quantum, and adds it to an accumulator in fp64. Sums of such multiples below 2^53 quanta
// have no error. withdraw() rounds once more, to the gradient's type. A sum of n deposits has an
// error of at most n/2 quanta. (Pre-rounded summation: Demmel and Nguyen, "Fast reproducible
// floating-point summation", 2013, with one bin whose place is known beforehand.)
//
// A parameter's bin follows from the largest magnitude of earlier steps, with room for growth. A
// magnitude beyond the room is always detected, and the step is repeated with a bin that fits. Two
// rules keep the bin a function of agreed values. Every micro-batch of a step is deposited, even
// after one did not fit. Bins belong to the training state, and a resumed run continues with the
// saved ones. A bin keeps at least 40 - count_bits bits of the largest magnitude that it follows.
struct ExactBin {
  // Exponents from kLowest to kHighest keep all numbers normal in fp64, including the quanta of
  // subnormal gradients.
  static constexpr std::int32_t kLowest = -900;
  static constexpr std::int32_t kHighest = 900;
  static constexpr std::int32_t kMostCountBits = 32;

  std::int32_t ceiling = kLowest;
  std::int32_t count_bits = 1;  // 2^count_bits deposits fit, 1 <= count_bits <= kMostCountBits
  friend bool operator==(const ExactBin&, const ExactBin&) = default;
};

// Deposit summarises |gradient x weight| of one deposit, the same for all bins and orders.
struct Deposit {
  double amax = 0;             // the largest, without the non-finite
  std::int64_t nonfinite = 0;  // NaN, infinite or at least 2^kHighest: not added
  bool fits = true;            // false: amax is outside the bin; the sum is invalid
};
// Returns the summary of two deposits together.
Deposit merged(const Deposit& a, const Deposit& b);

// accumulator[i] += round(gradient[i] x weight) to the bin's quantum, ties to even, with the
// product in fp64. `gradient` has as many elements as the accumulator, in the order of
// contiguous(). Contiguous fp32, bf16 and fp16 on the CPU run near the speed of memory; all others
// are converted first. REQUIRES: weight is finite and at most 2^256; the bin has room for the
// number of deposits.
Deposit deposit(const at::Tensor& gradient, double weight, const ExactBin& bin,
                std::span<double> accumulator);

// gradient[i] = accumulator[i] / divisor in fp64, then rounded to the gradient's type.
void withdraw(std::span<const double> accumulator, double divisor, const at::Tensor& gradient);

// Returns the bin of the next attempt or step. `amax` is the largest over all micro-batches and
// ranks of the current one (0 = no gradient: the ceiling stays). `micro_batches` is the possible
// number of deposits over all ranks, 1 to 2^32. A ceiling rises at once, to at least 2^4 above
// amax. Later the ceiling falls by one exponent a step, so that an intermittent gradient seldom
// repeats a step, but stays within 2^12 above amax. Do not call it for a step skipped as not
// finite: the bins stay.
ExactBin next_bin(const ExactBin& bin, double amax, std::uint64_t micro_batches);
// Returns the bin of an unknown parameter. Only zeros fit, so the first gradient repeats a step.
ExactBin first_bin(std::uint64_t micro_batches);

}  // namespace cox::detail
