// Memory planning as numbers: the cost of a rank's stages under each action. The SDK measures a
// profile, which becomes one MemoryProblem per distinct rank. The planner turns a problem into a
// MemoryFront, the trade between peak bytes and added time. Policy `memory` looks budgets up in the
// front. The model of a step: docs/memory-profile.md. Plain values and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"

namespace cox {

// StageOption is the cost of one action on one stage. All counts are >= 0.
//
// Bytes are device bytes of one rank. The level before a stage is base_bytes plus kept_bytes of all
// earlier stages. A pass through a stage reaches the level plus the pass's own high-water mark.
struct StageOption {
  bool allowed = false;         // possible in the SDK, and allowed by the user
  std::int64_t kept_bytes = 0;  // from the end of the stage's forward to the start of its backward
  std::int64_t forward_high_bytes = 0;  // most during the forward, above the level before the stage
  std::int64_t backward_high_bytes = 0;  // most during the backward, above the same level
  std::int64_t added_us = 0;             // compute beyond keep, such as recompute's work
  std::int64_t copied_bytes = 0;         // offload: moved while compute goes on
  std::int64_t stored_bytes = 0;  // offload: moved within the stage's passes; waits: added_us
  // Returns whether bytes move while compute goes on.
  bool is_copied() const { return copied_bytes > 0; }
  static auto fields(auto& self) {
    return message("StageOption", field(1, "allowed", self.allowed),
                   field(2, "kept_bytes", self.kept_bytes),
                   field(3, "forward_high_bytes", self.forward_high_bytes),
                   field(4, "backward_high_bytes", self.backward_high_bytes),
                   field(5, "added_us", self.added_us), field(6, "copied_bytes", self.copied_bytes),
                   field(7, "stored_bytes", self.stored_bytes));
  }
  friend bool operator==(const StageOption&, const StageOption&) = default;
};

inline constexpr std::int32_t kGap = -1;  // a stage between blocks: only keep may be allowed

struct Stage {
  std::array<StageOption, kMemoryActionNames.size()> options{};  // index = MemoryAction
  std::int64_t forward_us = 0;
  std::int64_t backward_us = 0;
  std::int32_t block = kGap;  // index of the block (a BlockId's value), or kGap

  const StageOption& option(MemoryAction action) const {
    return options[static_cast<std::size_t>(action)];
  }
  static auto fields(auto& self) {
    return message("Stage", field(1, "options", self.options),
                   field(2, "forward_us", self.forward_us),
                   field(3, "backward_us", self.backward_us), field(4, "block", self.block));
  }
  friend bool operator==(const Stage&, const Stage&) = default;
};

struct MemoryProblem {
  std::int64_t base_bytes = 0;  // resident throughout the step: parameters, optimizer, gradients
  std::vector<Stage> stages;    // in forward order
  std::int64_t copy_bytes_per_ms = 0;      // each way, to and from the tier; 0 = no tier
  std::optional<std::int64_t> tier_bytes;  // cap on all copied and stored bytes; none = no cap
  // Cap on stages with recompute, at any level or in full; none = no cap.
  std::optional<std::int32_t> most_recomputed;
  static auto fields(auto& self) {
    return message(
        "MemoryProblem", field(1, "base_bytes", self.base_bytes), field(2, "stages", self.stages),
        field(3, "copy_bytes_per_ms", self.copy_bytes_per_ms),
        field(4, "tier_bytes", self.tier_bytes), field(5, "most_recomputed", self.most_recomputed));
  }
  friend bool operator==(const MemoryProblem&, const MemoryProblem&) = default;
};

}  // namespace cox

namespace cox::planner {

// Indices of a stage's options.
inline constexpr std::size_t kActions = kMemoryActionNames.size();
inline constexpr auto kKeep = static_cast<std::size_t>(MemoryAction::keep);
inline constexpr auto kRecompute = static_cast<std::size_t>(MemoryAction::recompute);
inline constexpr auto kOffload = static_cast<std::size_t>(MemoryAction::offload);

struct ScheduledStep {
  std::int64_t peak_bytes = 0;    // most bytes resident in the step
  std::int64_t total_us = 0;      // from the first forward to the end of the last backward
  std::int64_t added_us = 0;      // beyond the sum of forward_us and backward_us
  std::int64_t copied_bytes = 0;  // bytes sent to the tier
  std::int32_t recomputed = 0;    // stages under recompute, at any level or in full
};

// Returns the step under the actions. Does not check budgets, caps or permissions. REQUIRES: a
// valid problem and one action per stage.
//
// schedule() is the planner's only model of a step, and prices every search result. Three engines
// (compute, copy-out, copy-in) each do one thing at a time, in order. Compute runs the forward of
// every stage, then the backward in reverse. The copied bytes of an offloaded stage leave from the
// end of its forward and stay resident until the copy ends. The copy-in starts with the backward of
// the next stage (the last stage: with the end of the last forward). The stage's backward waits for
// its copy-in. Memory is counted once per pass: bytes resident at the pass's start count for all of
// the pass.
ScheduledStep schedule(const MemoryProblem& problem, std::span<const MemoryAction> actions);

// PeakParts are the resident bytes at the moment of a step's peak. base_bytes and all stage_bytes
// sum to the peak.
struct PeakParts {
  std::int64_t base_bytes = 0;
  std::vector<std::int64_t> stage_bytes;  // kept, being copied, or used by the running pass
  std::size_t running_stage = 0;          // the stage whose pass runs
  bool is_backward = false;               // the backward pass runs
};

// Returns the parts of schedule()'s peak, at the first moment of the peak. REQUIRES: as schedule().
PeakParts parts_of_peak(const MemoryProblem& problem, std::span<const MemoryAction> actions);

// Returns whether every action is allowed and the plan is within both caps.
bool is_permitted(const MemoryProblem& problem, std::span<const MemoryAction> actions);

// Returns the time of one copy, rounded up to whole microseconds. REQUIRES: bytes_per_ms > 0.
std::int64_t copy_us(std::int64_t bytes, std::int64_t bytes_per_ms);

inline constexpr std::size_t kMaxStages = 8192;
inline constexpr std::int64_t kMaxStageValue = std::int64_t{1} << 46;  // 64 TiB; 2.2 years in us

// Returns invalid_argument with the stage and field that is out of range, or with the stage that
// allows no action.
Status validate(const MemoryProblem& problem);

}  // namespace cox::planner
