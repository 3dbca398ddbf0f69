// The topic Plan: the newest plan block by block, when it went out and took effect, and what the
// blocks cost. Its part of the snapshot is a PlanView beside the plan itself. Written on the
// recording thread; plain values; the rest is pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/decide/record.h"

namespace cox::metrics {

struct Topic;

// BlockCost is the profile of a block on the rank where it takes longest, because the slowest rank
// decides.
struct BlockCost {
  bool is_known = false;
  RankId rank{-1};  // whose profile this is
  BlockProfile profile;
};
using BlockCosts = std::vector<BlockCost>;  // one per block of the job

// Returns `costs` with the profiles of one round; the same pointer when the round carried none.
// Profiles of blocks that the job does not have are left out.
std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals);

struct PlanView {
  UnixTime last_published{};
  RoundId published_round{};         // of the newest plan
  std::uint64_t activated_plan = 0;  // newest one known to be active
  std::uint64_t activation_lag_rounds = 0;
  std::shared_ptr<const BlockCosts> costs;  // null before the first profile

  // Adds one round; `before` is the newest plan of the round before it.
  void add(const StepRecord& record, const Plan& before);
};

struct KnobMix {
  std::array<double, 4> precision_blocks{};  // index = Precision
  // index = MemoryAction of a kind: recompute counts all its levels; averaged over the ranks
  std::array<double, kMemoryKinds> action_blocks{};
};
// Counts blocks by precision and by memory action.
KnobMix knob_mix(const Plan& plan, std::int32_t world_size);

// BlockRun is neighbouring blocks with the same precision and action.
struct BlockRun {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  Precision precision = Precision::fp32;
  MemoryAction action = MemoryAction::keep;
};
// Returns the runs of one profile. REQUIRES: profile_index < plan.profiles.size(), or the plan
// has no profiles.
std::vector<BlockRun> block_runs(const Plan& plan, std::size_t profile_index);

// Returns how many ranks each profile has.
std::vector<std::int32_t> profile_sizes(const Plan& plan, std::int32_t world_size);

// Returns, one entry a block, how many ranks have each action (index = MemoryAction) on it.
using ActionRanks = std::array<std::int32_t, kMemoryActionNames.size()>;
std::vector<ActionRanks> action_ranks(const Plan& plan, std::int32_t world_size);

Topic plan_topic();

}  // namespace cox::metrics
