// Exact sums of gradients, the arithmetic of reproducible mode. Every micro-batch's gradient, times
// its weight, is rounded to a multiple of a quantum and added to an accumulator in fp64. Multiples
// of one quantum below 2^53 of it are added without any error, so the sum has the same bits in
// whatever order and on whatever ranks the micro-batches were added; it is rounded once more, when
// it becomes a gradient again. (Pre-rounded summation: Demmel and Nguyen, "Fast reproducible
// floating-point summation", 2013, with one bin whose place is known beforehand.)
//
//   every micro-batch, any rank:  seen = deposit(gradient, weight, bin, accumulator)
//   all ranks:                    sum of accumulators; largest amax; does it fit everywhere?
//   fits:         withdraw(accumulator, total weight, gradient)
//   does not:     the whole step again, from empty accumulators, in next_bin()
//   either way:   bin = next_bin(bin, largest amax, micro-batches of the step to come)
//
// The bin of a parameter follows from the largest magnitude that it had in earlier steps, with room
// for growth; a magnitude beyond the room is always noticed and makes the step be repeated with the
// bin that fits. For this to be a function of what all ranks agree on, every micro-batch of a step
// is deposited, also after one did not fit; and bins are part of a training state: a resumed run
// goes on with those of the save. Error of a sum of n deposits: at most n/2 quanta. A bin keeps
// 40 - count_bits bits or more of the largest magnitude that it follows.
//
// Pure functions, any thread. Loops run on torch's threads, which change no bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// ExactBin says where the bin of one parameter lies: magnitudes below 2^ceiling fit, and sums are
// multiples of the quantum 2^(ceiling + count_bits - 52).
struct ExactBin {
  // Exponents from kLowest to kHighest keep every number involved, quanta of subnormal gradients
  // included, among the normal numbers of fp64.
  static constexpr std::int32_t kLowest = -900;
  static constexpr std::int32_t kHighest = 900;
  static constexpr std::int32_t kMostCountBits = 32;

  std::int32_t ceiling = kLowest;
  std::int32_t count_bits = 1;  // 2^count_bits deposits fit, 1 <= count_bits <= kMostCountBits
  friend bool operator==(const ExactBin&, const ExactBin&) = default;
};

// Deposit is what one deposit saw of |gradient x weight|. It is the same for all bins and orders.
struct Deposit {
  double amax = 0;             // the largest one, not counting:
  std::int64_t nonfinite = 0;  // NaN, infinite or from 2^kHighest on: not added
  bool fits = true;            // false: amax is out of the bin; the sum is worthless
};
// Returns what two deposits saw together.
Deposit merged(const Deposit& a, const Deposit& b);

// accumulator[i] += round(gradient[i] x weight) to the bin's quantum, ties to even. The product is
// that of fp64. `gradient`: as many elements as the accumulator, in the order of contiguous();
// contiguous fp32, bf16 and fp16 on the CPU run near the speed of memory, all else is converted
// first. REQUIRES: weight is finite and at most 2^256; there are no more deposits than the bin has
// room for.
Deposit deposit(const at::Tensor& gradient, double weight, const ExactBin& bin,
                std::span<double> accumulator);

// gradient[i] = accumulator[i] / divisor in fp64, then rounded to the gradient's type.
void withdraw(std::span<const double> accumulator, double divisor, const at::Tensor& gradient);

// Returns the bin of the next attempt or step. `amax` is the largest over all micro-batches and
// ranks of this one (0 = no gradient: the ceiling stays), `micro_batches` the number of deposits
// that may come over all ranks, 1 to 2^32. A ceiling rises at once, to 2^4 above amax or more; it
// falls by one exponent a step, so that a gradient which comes and goes seldom repeats a step, but
// is never more than 2^12 above amax. Not for a step that is skipped as not finite: its bins stay.
ExactBin next_bin(const ExactBin& bin, double amax, std::uint64_t micro_batches);
// Returns the bin of a parameter of which nothing is known: only zeros fit, so its first gradient
// repeats a step.
ExactBin first_bin(std::uint64_t micro_batches);

}  // namespace cox::detail
