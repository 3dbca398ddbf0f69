// Budgets of memory: the most bytes that a rank's step may take, by the settings. For policy
// `memory` in every round, and for the SDK before the first one. Values and pure functions.
#pragma once

#include <cstdint>

#include "coordinator/core/settings/memory.h"
#include "coordinator/core/units.h"

namespace cox {

inline constexpr std::int64_t kNoBudget = std::int64_t{1} << 60;

// RankMemory has the facts about a rank that its budget depends on.
struct RankMemory {
  RankId rank{};
  std::int64_t limit_bytes = 0;  // of its device or share of a node; 0 = unknown
  std::int64_t keep_bytes = 0;   // peak with all blocks kept, corrected
  bool straggles = false;
};

struct RankBudget {
  std::int64_t bytes = kNoBudget;  // kNoBudget = nothing limits it
  bool needs_limit = false;        // a part of the limit was asked for, which is unknown
};

// Returns the budget of a rank. Bytes and fractions are caps. The modes take part of 85 % of the
// limit (conservative 0.90, balanced 0.75, aggressive 0.50); where keeping all fits those 85 %,
// only `aggressive` takes a part. A straggler gets the lightest mode, conservative. Without a
// budget the 85 % are the cap.
RankBudget budget_of(const MemoryConfig& config, const RankMemory& rank);

// Returns that part of so many bytes, rounded down.
inline std::int64_t part(double ratio, std::int64_t bytes) {
  return static_cast<std::int64_t>(ratio * static_cast<double>(bytes));
}

}  // namespace cox
