// The most bytes that a rank's step may take, from the settings and from what is known of the rank.
// Pure functions.
#pragma once

#include <cstdint>

#include "coordinator/core/memory_config.h"
#include "coordinator/core/units.h"

namespace cox {

inline constexpr std::int64_t kNoBudget = std::int64_t{1} << 60;

// What a rank is given a budget by.
struct RankMemory {
  RankId rank{};
  std::int64_t limit_bytes = 0;  // of its device or share of a node; 0 = unknown
  std::int64_t keep_bytes = 0;   // peak with all blocks kept, corrected
  bool straggles = false;
};

struct RankBudget {
  std::int64_t bytes = kNoBudget;  // kNoBudget = nothing limits it
  bool needs_limit = false;        // a part of the limit was asked for, which is unknown
  bool yields = false;             // a mode, which yields for a straggler
};

// Bytes and fractions are caps. The modes take part of 85 % of the limit (conservative 0.90,
// balanced 0.75, aggressive 0.50); where keeping all fits those 85 %, only `aggressive` takes a
// part. A straggler has the lightest of them, conservative. Without a budget the 85 % are the cap.
RankBudget budget_of(const MemoryConfig& config, const RankMemory& rank);

}  // namespace cox
