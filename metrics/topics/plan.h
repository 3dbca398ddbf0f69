// The topic Plan: the newest plan block by block, the rounds of publication and activation, and the
// costs of the blocks. The topic's view is a PlanView beside the plan itself. Written on the
// recording thread. Plain values; the functions are pure.
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

// BlockCost is the profile of a block on the rank where the block takes longest, because the
// slowest rank sets the pace.
struct BlockCost {
  bool is_known = false;
  RankId rank{-1};  // the rank of the profile
  BlockProfile profile;
};
using BlockCosts = std::vector<BlockCost>;  // one per block of the job

// Returns the seconds of the block's passes.
double seconds_of(const BlockProfile& profile);

// Returns `costs` with the profiles of one round, or the same pointer if the round carried none.
// Leaves out profiles of blocks that the job does not have.
std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals);

struct PlanView {
  UnixTime last_published{};
  RoundId published_round{};  // of the newest plan
  std::uint64_t newest_plan = 0;
  std::uint64_t activated_plan = 0;  // newest plan known to be active
  std::uint64_t activation_lag_rounds = 0;
  std::shared_ptr<const BlockCosts> costs;  // null before the first profile

  void add(const Round& round);
};

Topic plan_topic();

}  // namespace cox::metrics
