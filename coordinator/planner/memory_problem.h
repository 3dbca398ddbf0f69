// Memory planning as numbers: what a rank's stages cost under each action, and the trade between
// peak bytes and added time that follows from it. A profile measured by the SDK becomes one
// MemoryProblem per distinct rank; the planner turns it into a MemoryFront; policy `memory` looks
// budgets up in the front. Plain values, std only, no thread of their own.
//
// One step runs the stages forward in order, then backward in reverse. Bytes are device bytes of
// one rank. The level before a stage is base_bytes plus kept_bytes of all earlier stages; a pass
// through the stage reaches that level plus its own high-water mark.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/memory_front.h"

namespace cox {

// One action of one stage. All counts are >= 0.
struct StageOption {
  bool allowed = false;                  // the SDK can do it here, and the user lets it
  std::int64_t kept_bytes = 0;           // from the end of its forward to the start of its backward
  std::int64_t forward_high_bytes = 0;   // most during its forward, above the level before it
  std::int64_t backward_high_bytes = 0;  // most during its backward, above the level before it
  std::int64_t added_us = 0;             // compute beyond keep; recompute: the forward again
  std::int64_t copied_bytes = 0;         // offload: leave and come back while compute goes on
  std::int64_t stored_bytes = 0;         // offload: the same, but within the stage's own passes,
                                         // which wait for it: that time is in added_us
  // Whether bytes move while compute goes on.
  bool is_copied() const { return copied_bytes > 0; }
  friend bool operator==(const StageOption&, const StageOption&) = default;
};

inline constexpr std::int32_t kGap = -1;  // a stage between blocks: only keep may be allowed

struct Stage {
  std::array<StageOption, 4> options{};  // index = MemoryAction
  std::int64_t forward_us = 0;
  std::int64_t backward_us = 0;
  std::int32_t block = kGap;  // index of the block (a BlockId's value), or kGap

  const StageOption& option(MemoryAction action) const {
    return options[static_cast<std::size_t>(action)];
  }
  friend bool operator==(const Stage&, const Stage&) = default;
};

struct MemoryProblem {
  std::int64_t base_bytes = 0;  // resident all through the step: parameters, optimizer, gradients
  std::vector<Stage> stages;    // in forward order
  std::int64_t copy_bytes_per_ms = 0;           // each way, to and from the tier; 0 = no tier
  std::optional<std::int64_t> tier_bytes;       // most copied and stored in all; none = no cap
  std::optional<std::int32_t> most_recomputed;  // most stages with recompute; none = no cap
  friend bool operator==(const MemoryProblem&, const MemoryProblem&) = default;
};

}  // namespace cox
