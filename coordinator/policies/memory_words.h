// What policy `memory` says: sentences with bytes in MiB and time in percent of a step. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/memory_config.h"
#include "coordinator/policies/memory_round.h"

namespace cox {

std::string mib(std::int64_t bytes);  // "5120 MiB", "12.3 MiB", "0.004 MiB"

// "+8.3 % time" of a step, or "+12.0 ms" where the step is not known.
std::string added_time(std::int64_t added_us, std::int64_t step_us);

// "12 of 16 blocks recomputed, 2 offloaded" or "all 16 blocks kept".
std::string mix_text(std::span<const MemoryAction> actions);

// Ranks that end up with the same actions at the same cost.
struct RankGroup {
  std::vector<std::size_t> ranks;
  std::span<const MemoryAction> actions;
  MemoryCost cost;                // predicted
  std::int64_t peak_bytes = 0;    // the same, corrected: the highest of them
  std::int64_t budget_bytes = 0;  // the lowest of them
  std::int64_t keep_bytes = 0;    // with the model's fastest plan
  std::int64_t step_us = 0;
};
std::string group_text(const RankGroup& group, std::size_t world);

// Why a rank moves. Requires: its choice is a move.
std::string over_budget_text(std::size_t rank, const RankView& view, std::int64_t measured_bytes);
std::string room_text(std::size_t rank, const RankView& view, bool straggles, double slowness);

// What is too small, by how much, and what would help.
std::string infeasible_text(std::size_t rank, const RankView& view, const MemoryConfig& config);

}  // namespace cox
