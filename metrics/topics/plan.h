// The topic Plan: the newest plan block by block, when it went out and took effect, and what the
// blocks cost. Its view is a PlanView beside the plan itself. Written on the recording thread;
// plain values; the rest is pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "metrics/topic.h"

namespace cox::metrics {

// BlockCost is the profile of a block on the rank where it takes longest, because the slowest rank
// decides.
struct BlockCost {
  bool is_known = false;
  RankId rank{-1};  // whose profile this is
  BlockProfile profile;
};
using BlockCosts = std::vector<BlockCost>;  // one per block of the job

// Returns the seconds of the block's passes.
double seconds_of(const BlockProfile& profile);

// Returns `costs` with the profiles of one round; the same pointer when the round carried none.
// Profiles of blocks that the job does not have are left out.
std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals);

struct PlanView {
  UnixTime last_published{};
  RoundId published_round{};  // of the newest plan
  std::uint64_t newest_plan = 0;
  std::uint64_t activated_plan = 0;  // newest one known to be active
  std::uint64_t activation_lag_rounds = 0;
  std::shared_ptr<const BlockCosts> costs;  // null before the first profile

  void add(const Round& round);
};

Topic plan_topic();

}  // namespace cox::metrics
