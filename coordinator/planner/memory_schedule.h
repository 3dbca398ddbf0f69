// The model of a step under a plan: what it takes and how many bytes it needs. This is the single
// truth of the planner; every search result is priced by it, and without copies it is the plain
// stage model of memory_problem.h.
//
// Three engines (compute, copy-out, copy-in) each do one thing at a time, in order. Compute runs
// forward of every stage, then backward in reverse. An offloaded stage's copied bytes leave from
// the end of its forward and stay resident until that copy is through; they are fetched from the
// start of the backward before its own, and its backward waits for them. Memory is counted once a
// pass: what is resident at its start counts for all of it. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

struct ScheduledStep {
  std::int64_t peak_bytes = 0;    // most bytes resident in the step
  std::int64_t total_us = 0;      // from the first forward to the end of the last backward
  std::int64_t added_us = 0;      // beyond the sum of forward_us and backward_us
  std::int64_t waited_us = 0;     // the part of added_us in which compute waits for a copy
  std::int64_t copied_bytes = 0;  // bytes sent to the tier
  std::int32_t recomputed = 0;    // stages under recompute
};

// Requires: a valid problem, one action a stage. Says nothing about budgets, caps or permissions.
ScheduledStep schedule(const MemoryProblem& problem, std::span<const MemoryAction> actions);

// Whether every action is allowed and both caps are kept.
bool is_permitted(const MemoryProblem& problem, std::span<const MemoryAction> actions);

// Time of one copy, rounded up to whole microseconds. Requires: bytes_per_ms > 0.
std::int64_t copy_us(std::int64_t bytes, std::int64_t bytes_per_ms);

inline constexpr std::size_t kMaxStages = 8192;
inline constexpr std::int64_t kMaxStageValue = std::int64_t{1} << 46;  // 64 TiB; 2.2 years in us

// invalid_argument naming the stage and field that is out of range, or that no action is allowed.
Status validate(const MemoryProblem& problem);

}  // namespace cox::planner
