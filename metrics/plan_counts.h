// Counts blocks and ranks by format and by memory action under a plan. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/plan.h"

namespace cox::metrics {

struct KnobMix {
  std::array<double, 4> precision_blocks{};  // index = Precision
  // index = MemoryAction of a kind (recompute counts all its levels); averaged over the ranks
  std::array<double, kMemoryKinds> action_blocks{};
};
// Counts blocks by precision and by memory action.
KnobMix knob_mix(const Plan& plan, std::int32_t world_size);

// BlockRun is a run of neighbouring blocks with the same precision and action.
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

// Returns, for each block, the number of ranks with each action (index = MemoryAction).
using ActionRanks = std::array<std::int32_t, kMemoryActionNames.size()>;
std::vector<ActionRanks> action_ranks(const Plan& plan, std::int32_t world_size);

}  // namespace cox::metrics
