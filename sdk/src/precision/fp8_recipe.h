// What FP8 is asked to do, and what it reports. Scales are powers of two: scaling is then exact,
// only the cast rounds, and results do not depend on where in a product a scale is applied. Plain
// values.
//
// - Weights are scaled by their own largest magnitude (they are quantised once a step): per tensor,
//   or per output row with Fp8Granularity::row.
// - Activations and gradients: `current` by their own largest magnitude, per tensor or per row
//   (of all dimensions but the last); `delayed` by the largest of the last `history` steps, one
//   scale for the whole tensor. The first step, which has no history, counts as current.
// - Backward uses what forward stored: rows keep the scales that they have along the output
//   dimension of a forward product, also where a gradient sums over it.
#pragma once

#include <cstdint>

#include "coordinator/core/precision_config.h"

namespace cox::detail {

struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::current;
  Fp8Granularity granularity = Fp8Granularity::tensor;
  std::uint32_t history = 16;  // steps, >= 1
  std::uint32_t margin = 0;    // bits that stay free above the largest magnitude, 0 .. 16

  friend bool operator==(const Fp8Recipe&, const Fp8Recipe&) = default;
};
inline Fp8Recipe fp8_recipe(const PrecisionConfig& config) {
  return {config.fp8_scaling, config.fp8_granularity, config.fp8_history, config.fp8_margin};
}

// Of activations and gradients together; weights are not counted.
struct Fp8Counts {
  std::uint64_t sampled = 0;    // values quantised
  std::uint64_t underflow = 0;  // of these: not zero, and made zero
  std::uint64_t saturated = 0;  // of these: finite, and clipped
  float activation_amax = 0;    // largest finite magnitudes; 0 = nothing seen
  float gradient_amax = 0;      // with the loss scale in it
  friend bool operator==(const Fp8Counts&, const Fp8Counts&) = default;
};

}  // namespace cox::detail
