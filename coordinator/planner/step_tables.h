// What the searches look up again and again about one problem: when each forward ends, how long
// copies take, what is left of the budget in each pass. Plain values; pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

inline constexpr std::size_t kActions = kMemoryActionNames.size();
inline constexpr auto kKeep = static_cast<std::size_t>(MemoryAction::keep);
inline constexpr auto kRecompute = static_cast<std::size_t>(MemoryAction::recompute);
inline constexpr auto kOffload = static_cast<std::size_t>(MemoryAction::offload);

enum class Round { down, up };

struct StepTables {
  explicit StepTables(const MemoryProblem& problem);

  // How long backward of `stage` keeps compute busy under `action`, waits not counted.
  std::int64_t work_us(std::size_t stage, std::size_t action) const;
  // How long compute waits for the copy-in of `stage`, given the action of the stage behind it and
  // a copy-out that is long over.
  std::int64_t wait_us(std::size_t stage, std::size_t action_behind) const;

  // Bytes that the copy-out engine can have taken away when forward of `stage` starts.
  std::int64_t carried_bytes(std::size_t stage, Round round) const;

  const MemoryProblem& problem;
  std::vector<std::int64_t> starts_us;       // of each forward; one more: when all are over
  std::vector<std::int64_t> copies_us;       // of each stage's offload, one way; else 0
  std::vector<std::int64_t> backward_after;  // sum of backward_us behind each stage
  std::vector<std::int64_t> added_after;     // most added_us that stages behind it can bring
  bool can_offload = false;                  // some stage may
  bool is_rate_exact = false;                // carried_bytes() stays within its type
  bool is_tier_scarce = false;               // whether a plan could pass the cap
  bool is_recompute_scarce = false;
};

}  // namespace cox::planner
