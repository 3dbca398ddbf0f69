// Lower bounds for the searches of the planner, and the tables about one problem that they look up
// again and again. Internal to the planner; front.h is its interface. Plain values; pure once
// built.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

enum class Round { down, up };

// StepTables holds what the searches look up again and again: the options of each stage that are
// worth a look, when each forward pass starts, how long each copy takes, and the backward time and
// the largest added time of all later stages.
struct StepTables {
  explicit StepTables(const MemoryProblem& problem);

  // Returns how long backward of `stage` keeps compute busy under `action`, without waits.
  std::int64_t work_us(std::size_t stage, std::size_t action) const;
  // Returns how long compute waits for the copy-in of `stage`, given the action of the stage behind
  // it and a copy-out that ended long before.
  std::int64_t wait_us(std::size_t stage, std::size_t action_behind) const;

  // Returns the bytes that the copy-out engine can have taken away when forward of `stage` starts.
  std::int64_t carried_bytes(std::size_t stage, Round round) const;

  const MemoryProblem& problem;
  // Of each stage the allowed actions, from light to heavy, but for those that another one replaces
  // in every plan at no more bytes and time.
  std::vector<std::vector<std::uint8_t>> choices;
  std::vector<std::int64_t> starts_us;       // of each forward; one more: when all are over
  std::vector<std::int64_t> copies_us;       // of each stage's offload, one way; else 0
  std::vector<std::int64_t> backward_after;  // sum of backward_us behind each stage
  std::vector<std::int64_t> added_after;     // most added_us that stages behind it can bring
  bool can_offload = false;                  // some stage may
  bool is_rate_exact = false;                // carried_bytes() stays within its type
  bool is_tier_scarce = false;               // whether a plan could pass the cap
  bool is_recompute_scarce = false;
};

// The case that a bound is asked for.
enum class Further : std::size_t { none = 0, offloads = 1 };      // may later stages be offloaded?
enum class Before : std::size_t { resident = 0, offloaded = 1 };  // the stage just before

// A lower bound on the time that the stages from one on must add, given the bytes that are resident
// before it: the larger of two easier problems. In one the copy-out engine is infinitely fast;
// without further offloads and with nothing on its way out that is the truth. In the other only
// forward passes have to fit, and the engine takes bytes away at its full rate from the first
// microsecond, from whatever stage. One staircase per stage and case.
class CompletionBound {
 public:
  // Longer staircases than `most_treads` are made coarser, downwards.
  CompletionBound(const StepTables& tables, std::int64_t budget_bytes, std::size_t most_treads);

  // Returns the bound on the added time; kNever when the step cannot be completed within the
  // budget. `leaving_bytes` are still to be moved out when the stage's forward begins.
  std::int64_t added_us(std::size_t stage, Before before, Further further, std::int64_t kept_bytes,
                        std::int64_t leaving_bytes) const;
  // Returns false when a staircase was too long and was made coarser.
  bool is_whole() const { return is_whole_; }

 private:
  struct Tread {
    std::int64_t most_kept;  // with at most this much kept before,
    std::int64_t added_us;   // the rest adds this or more
  };
  using Stairs = std::vector<Tread>;  // both ascending

  // The stairs behind a stage, seen through one action of it.
  struct Lane {
    const Tread* at = nullptr;
    const Tread* end = nullptr;
    std::int64_t room = 0;  // most that may be kept before, whatever follows
    std::int64_t bytes = 0;
    std::int64_t added_us = 0;
    std::int64_t most() const { return std::min(room, at->most_kept - bytes); }
    std::int64_t added() const { return at->added_us + added_us; }
    bool is_full(std::int64_t highest) const { return room <= highest; }
  };

  enum class Easing : std::size_t { fast_engine, fast_engine_no_offload, forward_only };
  static constexpr std::size_t kEasings = 3;

  static std::size_t index(std::size_t stage, Before before, Easing easing);
  void build_stage(std::size_t stage, Before before);
  void build(std::size_t stage, Before before, Easing easing);
  Lane lane(std::size_t stage, std::size_t action, Before before, Easing easing) const;
  std::int64_t room(std::size_t stage, std::size_t action, Before before, Easing easing) const;
  void coarsen(Stairs& stairs);
  std::int64_t look(std::size_t stage, Before before, Easing easing, std::int64_t bytes) const;

  const StepTables& tables_;
  std::int64_t room_bytes_;
  std::size_t most_treads_;
  bool is_whole_ = true;
  bool has_rate_ = false;       // forward_only says something
  std::vector<Stairs> stairs_;  // by index(), also behind the last stage
};

// A quick lower bound on the added time under a budget, for problems too large to solve to the end:
// for some stages, the savings that must have been made before them for their passes to fit, if a
// stage could be split between its actions and copies cost nothing.
class LinearBound {
 public:
  // Looks at `places` stages, evenly spread, the last always among them.
  LinearBound(const MemoryProblem& problem, std::size_t places);

  // Returns a time below which no permitted plan within the budget stays.
  std::int64_t added_us(std::int64_t budget_bytes) const;

 private:
  struct Corner {
    std::int64_t peak_bytes;  // from this budget on,
    double added_us;          // at least this; linear between corners
  };

  std::vector<std::vector<Corner>> curves_;  // one per place, ascending peak
};

}  // namespace cox::planner
