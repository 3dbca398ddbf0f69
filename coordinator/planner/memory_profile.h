// A memory profile as a file: what was measured of every kind of rank, with the names of the
// stages, so that `cox plan` can answer what-if questions long after the run. The format is on
// docs/memory-profile.md. Pure text in and out; the text may be hostile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct RankProfile {
  std::vector<std::int32_t> ranks;       // that it holds for
  std::vector<std::string> stage_names;  // one per stage of the problem
  MemoryProblem problem;
  std::int64_t limit_bytes = 0;  // of the device or its share of a node; 0 = unknown
  friend bool operator==(const RankProfile&, const RankProfile&) = default;
};

struct MemoryProfile {
  std::vector<RankProfile> profiles;
  friend bool operator==(const MemoryProfile&, const MemoryProfile&) = default;
};

inline constexpr std::string_view kProfileFormat = "coxswain-memory-profile";
inline constexpr std::int64_t kProfileVersion = 1;

// One stage a line; ends with a line feed. Requires: names that are valid UTF-8.
std::string to_json(const MemoryProfile& profile);

// invalid_argument naming profile, stage and field; what the JSON reader says where the text is
// no JSON; a version that is not known here is refused.
Result<MemoryProfile> read_memory_profile(std::string_view text);

}  // namespace cox::planner
