// A lower bound on what the stages from one on must add, given the bytes that are resident before
// it: the larger of two easier problems. In one the copy-out engine is infinitely fast; without
// further offloads and with nothing on its way out that is the truth. In the other only forward
// passes have to fit, and the engine takes bytes away at its full rate from the first microsecond,
// from whatever stage. One staircase per stage and case; pure once built.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/step_tables.h"

namespace cox::planner {

// The case that a bound is asked for.
enum class Further : std::size_t { none = 0, offloads = 1 };      // may later stages be offloaded?
enum class Before : std::size_t { resident = 0, offloaded = 1 };  // the stage just before

class CompletionBound {
 public:
  // Longer staircases than `most_treads` are made coarser, downwards.
  CompletionBound(const StepTables& tables, std::int64_t budget_bytes, std::size_t most_treads);

  // kNever when no way to complete it within the budget is left. `leaving_bytes` are still to
  // be moved out when the stage's forward begins.
  std::int64_t added_us(std::size_t stage, Before before, Further further, std::int64_t kept_bytes,
                        std::int64_t leaving_bytes) const;
  // False when a staircase was too long.
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

}  // namespace cox::planner
