// A trial of rules of loss scaling over one trace: GradScaler's, and ours with the policy. Every
// rank keeps its own scaler, fed from merged ballots as in a job. The policy gets reports every few
// steps, and its plans arrive some rounds later.
#pragma once

#include <cstdint>

#include "coordinator/core/loss_scale.h"
#include "tests/policies/scale_traces.h"

namespace cox::test {

struct ScaleTally {
  std::uint64_t steps = 0;
  std::uint64_t skipped = 0;
  std::uint64_t unsavable = 0;  // steps whose gradients are not finite under any scale
  std::uint64_t blurred = 0;    // steps in which over 15 % of the gradients became zero
  std::uint64_t not_recovered = 0;
  std::uint64_t disagreements = 0;  // steps after which the ranks' scalers differed

  std::uint64_t savable() const { return skipped - unsavable; }
  ScaleTally& operator+=(const ScaleTally& other);
};

enum class ScaleRule : std::uint8_t { grad_scaler, ours_without_policy, ours };

// Runs a rule over a trace. The rule has not recovered if the final scale is below a sixteenth, or
// above twice, of the ideal scale. The ideal follows from the largest gradient of the last 1000
// steps. The trace ends 4500 steps after the trouble. In a trace with endless trouble, the rule has
// not recovered if the scale has left the range of the rules.
ScaleTally try_rule(ScaleRule rule, TraceKind kind, std::uint64_t seed);

}  // namespace cox::test
