// A plan and a summary as telemetry shows them: how many blocks do what, which blocks in a row do
// the same, how many ranks are in which state. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/snapshot.h"

namespace cox::metrics {

// Exclusive states; they add up to the world size.
struct RankCounts {
  std::int32_t training = 0;
  std::int32_t finished = 0;
  std::int32_t watching = 0;
  std::int32_t missing = 0;
};
// Before the first round every rank is missing.
RankCounts rank_counts(const Snapshot& snapshot);

struct KnobMix {
  std::array<double, 4> precision_blocks{};  // index = Precision
  std::array<double, 4> action_blocks{};     // index = MemoryAction; averaged over the ranks
};
KnobMix knob_mix(const Plan& plan, std::int32_t world_size);

// Neighbouring blocks with the same precision and action.
struct BlockRun {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  Precision precision = Precision::fp32;
  MemoryAction action = MemoryAction::keep;
};
// Of one class of ranks. Requires: profile_index < plan.profiles.size(), or the plan has no
// profiles.
std::vector<BlockRun> block_runs(const Plan& plan, std::size_t profile_index);

// Ranks of each class, one entry a class.
std::vector<std::int32_t> profile_sizes(const Plan& plan, std::int32_t world_size);

// What all block names begin with, up to and including their last common dot; empty for one block.
std::string common_prefix(const JobFacts& job);

// The block's name, or "block 7" where the job names none.
std::string block_name(const JobFacts& job, std::size_t block);

}  // namespace cox::metrics
