// Stragglers: names ranks that are slower than they should be, in which phase, since when and how
// sure that is. Findings only; no knob belongs to it.
//
// Each rank's slowdown, overall and by phase (slowdowns.h), is divided by the noise of such numbers
// and feeds one CUSUM a channel (cusum.h). The noise is measured: residuals to each rank's own
// running level, cut at three deviations, pooled over ranks and rounds; a rank noisier than twice
// the pool (in variance) has its own. Half of the stated rate of false alarms goes to the whole,
// half is split over the phases. A rank is named when a CUSUM reaches its threshold, it has made
// min_rounds reports, and its own work as a whole is up by half the smallest slowdown worth naming;
// the phase named is the one that costs it most. A named rank is watched by the opposite test: gone
// when that is as sure as the naming was, moved when another phase has become the costlier one.
//
// Not seen: a slowdown of all ranks at once (nobody waits), and, with one or two ranks, anything
// from before their first reports. Any number of ranks below half may be slow at once.
#pragma once

#include "coordinator/core/policy.h"

namespace cox {

class Stragglers final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::stragglers; }
  std::string_view name() const override { return "stragglers"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
