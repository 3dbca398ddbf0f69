// Which point of its front a rank should be at: the fastest one within its budget, with bands that
// keep it from moving back and forth. Pure functions.
//
//   heavier   at once, where the plan in force is above the budget as predicted and corrected, was
//             measured above it, or has an action that is not to be used
//   lighter   after kRoomRounds in a row in which the lighter point fits kRoom of the budget and
//             saves at least kWorthIt of the step; at once on a straggler (the whole budget, from
//             kWorthOnStraggler on), and where an action has rested and is tried again
//   never     a point of at least the predicted bytes of one that broke the budget, for
//             kCeilingRounds
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/memory_front.h"

namespace cox {

inline constexpr double kRoom = 0.98;
inline constexpr double kWorthIt = 0.01;
inline constexpr double kWorthOnStraggler = 0.002;
inline constexpr double kRoomRounds = 16;
inline constexpr double kCeilingRounds = 1000;

// The points of a model that may be used now. Where an action may not be, the block gets keep (or
// the only action it may have) instead, and the point's bytes become a bound.
MemoryFront usable_front(const MemoryModel& model, std::span<const ActionSet> allowed);

// Whether every block has an action that it may have.
bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed);

struct RankPlace {
  std::int64_t budget_bytes = 0;
  std::int64_t correction_bytes = 0;  // real minus predicted
  std::int64_t ceiling_bytes = 0;     // predicted bytes must be below; 0 = none
  std::optional<MemoryCost> now;      // of the plan in force, predicted
  bool now_allowed = true;
  bool breached = false;          // it was just measured above the budget
  bool eager = false;             // goes to a lighter plan at once ...
  double least_worth = kWorthIt;  // ... or later, if it saves that part of the step
  double room_rounds = 0;
};

enum class Move : std::uint8_t { stay, over_budget, breach, rules, lighter };

struct Choice {
  Move move = Move::stay;
  std::size_t point = 0;   // to go to, unless it stays
  bool feasible = true;    // false = no point fits; `point` has the least bytes
  double room_rounds = 0;  // to remember
  double worth = 0;        // part of the step that a lighter plan would save
};

// Requires: `front` is not empty; step_us >= 0 (0 = unknown: any saving is worth it).
Choice choose(const MemoryFront& front, std::int64_t step_us, const RankPlace& place);

}  // namespace cox
