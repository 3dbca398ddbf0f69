// Budgets of memory: the most bytes that a rank's step may take, by the settings. Policy `memory`
// computes budgets in every round, the SDK before the first one. Values and pure functions.
#pragma once

#include <cstdint>

#include "coordinator/core/settings/memory.h"
#include "coordinator/core/units.h"

namespace cox {

inline constexpr std::int64_t kNoBudget = std::int64_t{1} << 60;

// RankMemory has the facts that a rank's budget depends on.
struct RankMemory {
  RankId rank{};
  std::int64_t limit_bytes = 0;  // of the rank's device or share of a node; 0 = unknown
  std::int64_t keep_bytes = 0;   // peak with all blocks kept, corrected
  bool straggles = false;
};

struct RankBudget {
  std::int64_t bytes = kNoBudget;  // kNoBudget = unlimited
  bool needs_limit = false;        // the settings ask for a part of the limit, which is unknown
};

// Returns the budget of a rank. Bytes and fractions in the settings are caps. The modes take a part
// of 85 % of the limit: conservative 0.90, balanced 0.75, aggressive 0.50. If all blocks can be
// kept within the 85 %, only `aggressive` takes a part. A straggler gets the lightest mode,
// conservative. Without a budget the 85 % are the cap.
RankBudget budget_of(const MemoryConfig& config, const RankMemory& rank);

// Returns `ratio` times `bytes`, rounded down.
inline std::int64_t part(double ratio, std::int64_t bytes) {
  return static_cast<std::int64_t>(ratio * static_cast<double>(bytes));
}

}  // namespace cox
