// Rules of loss scaling on trial: GradScaler's, and ours with the policy, over one trace. Every
// rank keeps a scaler of its own, fed from merged ballots as in a job; the policy sees reports
// every few steps and its plans arrive some rounds later.
#pragma once

#include <cstdint>

#include "coordinator/core/loss_scale.h"
#include "tests/policies/scale_traces.h"

namespace cox::test {

struct ScaleTally {
  std::uint64_t steps = 0;
  std::uint64_t skipped = 0;
  std::uint64_t unsavable = 0;  // of these: gradients were not finite under any scale
  std::uint64_t blurred = 0;    // steps in which more than 15 % of the gradients became zero
  std::uint64_t not_recovered = 0;
  std::uint64_t disagreements = 0;  // steps after which ranks had different scalers

  std::uint64_t savable() const { return skipped - unsavable; }
  ScaleTally& operator+=(const ScaleTally& other);
};

enum class ScaleRule : std::uint8_t { grad_scaler, ours_without_policy, ours };

// Not recovered: at the end of the trace, 4500 steps after its trouble, the scale is less than a
// sixteenth, or more than twice, of what the largest gradient of the last 1000 steps allows. A
// trace whose trouble never ends counts when the scale has left the range of the rules.
ScaleTally try_rule(ScaleRule rule, TraceKind kind, std::uint64_t seed);

}  // namespace cox::test
