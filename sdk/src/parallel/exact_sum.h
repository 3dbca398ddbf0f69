// Exact sums of gradients: the arithmetic of reproducible mode. Every micro-batch's gradient, times
// its weight, is rounded to a multiple of a quantum and added to an accumulator in fp64. Multiples
// of one quantum below 2^53 of it are added without any error, so the sum has the same bits in
// whatever order and on whatever ranks the micro-batches were added; it is rounded once more, when
// it becomes a gradient again. (Pre-rounded summation: Demmel and Nguyen, "Fast reproducible
// floating-point summation", 2013, with one bin whose place is known beforehand.)
//
// The quantum of a parameter follows from the largest magnitude that it had in an earlier step,
// with room for growth; a magnitude beyond the room makes the step be repeated with the quantum
// that fits. All of it is a function of what all ranks agree on. Pure functions, any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// Where the bin of one parameter lies: magnitudes below 2^ceiling fit.
struct ExactBin {
  std::int32_t ceiling = 0;     // exponent
  std::int32_t count_bits = 0;  // 2^count_bits deposits fit
  double quantum() const;       // 2^(ceiling + count_bits - 52)
  friend bool operator==(const ExactBin&, const ExactBin&) = default;
};

// What one deposit saw.
struct Deposit {
  double amax = 0;             // largest finite |gradient x weight|
  std::int64_t nonfinite = 0;  // NaN or infinite: not added
  bool fits = true;            // false: some magnitude was out of the bin; the sum is worthless
};

// accumulator[i] += round(gradient[i] x weight) to the bin's quantum. `gradient`: dense fp32, bf16
// or fp16 on the CPU, as many elements as the accumulator; its order is that of contiguous().
Deposit deposit(const at::Tensor& gradient, double weight, const ExactBin& bin,
                std::span<double> accumulator);

// gradient[i] = accumulator[i] / divisor, rounded once to the gradient's type.
void withdraw(std::span<const double> accumulator, double divisor, at::Tensor& gradient);

// The bin of the next step: `amax` is the largest over all micro-batches and ranks of this one (0 =
// no gradient: the bin stays), `micro_batches` the number of deposits that may come.
ExactBin next_bin(const ExactBin& bin, double amax, std::uint64_t micro_batches);
// Before anything is known of a parameter.
ExactBin first_bin(std::uint64_t micro_batches);

}  // namespace cox::detail
