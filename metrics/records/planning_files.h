// Reads and writes the planner's problems as files. Pure text in and out; the text may be hostile.
// Errors: invalid_argument, naming profile or instance, stage and field; data_loss for no JSON.
//
// A memory profile has the measurements of every kind of rank and the names of the stages. `cox
// plan` answers what-if questions with it long after the run (format: docs/memory-profile.md).
//
// A file of instances has planning problems with known answers: chains of blocks with interior
// activations, boundaries, workspaces, a bandwidth and a list of budgets, in MiB and microseconds.
// Numbers of instances become those of a MemoryProblem unchanged, so bytes of the problem are MiB
// of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_facts.h"

namespace cox::io {

inline constexpr std::size_t kMaxPlanningFileBytes = std::size_t{32} << 20;
inline constexpr std::string_view kProfileFormat = "coxswain-memory-profile";
inline constexpr std::int64_t kProfileVersion = 2;

// Returns the profile as JSON with one stage a line. The text ends with a line feed.
std::string to_json(const planner::MemoryProfile& profile);

// Reads a profile. Refuses an unknown version.
Result<planner::MemoryProfile> read_memory_profile(std::string_view text);

struct PlanInstance {
  std::string id;
  MemoryProblem problem;
  std::vector<std::int64_t> budgets;
};
Result<std::vector<PlanInstance>> read_instances(std::string_view text);

// Returns one letter per stage: K, R, O or T, and 1 to 7 for a level of recompute.
std::string letters(const std::vector<MemoryAction>& actions);

}  // namespace cox::io
