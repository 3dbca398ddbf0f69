// Lower bounds for the planner's searches, and the lookup tables of one problem. Internal to the
// planner; front.h is its interface. Plain values; pure once built.
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

// StepTables holds values that the searches look up all the time: the useful options of each stage,
// the starts of forward passes, and the times of copies. Also the backward time and the largest
// added time of all later stages.
struct StepTables {
  explicit StepTables(const MemoryProblem& problem);

  // Returns the compute time of the backward of `stage` under `action`, without waits.
  std::int64_t work_us(std::size_t stage, std::size_t action) const;
  // Returns how long compute waits for the copy-in of `stage`, if its copy-out ended long before.
  // `action_behind` is the action of stage + 1.
  std::int64_t wait_us(std::size_t stage, std::size_t action_behind) const;

  // Returns the most bytes that the copy-out engine can have moved when the forward of `stage`
  // starts.
  std::int64_t carried_bytes(std::size_t stage, Round round) const;

  const MemoryProblem& problem;
  // Per stage, the useful actions from light to heavy. An action is left out if another one
  // replaces it in every plan at no more bytes and time.
  std::vector<std::vector<std::uint8_t>> choices;
  std::vector<std::int64_t> starts_us;  // per forward; the last entry is the end of all forwards
  std::vector<std::int64_t> copies_us;  // per stage, one way; 0 without offload
  std::vector<std::int64_t> backward_after;  // sum of backward_us behind each stage
  std::vector<std::int64_t> added_after;     // most added_us that later stages can bring
  bool can_offload = false;                  // some stage allows an offload that copies
  bool is_rate_exact = false;                // carried_bytes() stays within its type
  bool is_tier_scarce = false;               // some plan could exceed tier_bytes
  // Some plan could exceed most_recomputed.
  bool is_recompute_scarce = false;
};

// Further says whether later stages may be offloaded. Before says whether the stage just before was
// offloaded. A bound depends on both.
enum class Further : std::size_t { none = 0, offloads = 1 };      // later stages
enum class Before : std::size_t { resident = 0, offloaded = 1 };  // the stage just before

// CompletionBound is a lower bound on the time that the remaining stages must add, given the bytes
// resident before them. The bound is the larger one of two easier problems:
//
// - The copy-out engine is infinitely fast. This case is exact if no further stage is offloaded and
//   no copy is under way.
// - Only forward passes must fit, and the engine moves bytes at its full rate from the first
//   microsecond, from any stage.
//
// Each stage and case has one staircase.
class CompletionBound {
 public:
  // Builds all staircases. Staircases longer than `most_treads` are made coarser, towards lower
  // bounds.
  CompletionBound(const StepTables& tables, std::int64_t budget_bytes, std::size_t most_treads);

  // Returns the bound on the added time, or kNever if the step cannot be completed within the
  // budget. `leaving_bytes` are the bytes still to be moved out when the stage's forward begins.
  std::int64_t added_us(std::size_t stage, Before before, Further further, std::int64_t kept_bytes,
                        std::int64_t leaving_bytes) const;
  // Returns false when a staircase was too long and was made coarser.
  bool is_whole() const { return is_whole_; }

 private:
  struct Tread {
    std::int64_t most_kept;  // if no more than this is kept before,
    std::int64_t added_us;   // the remaining stages add at least this
  };
  using Stairs = std::vector<Tread>;  // ascending in both members

  // Lane is the staircase of the next stage, shifted by one action of this stage.
  struct Lane {
    const Tread* at = nullptr;
    const Tread* end = nullptr;
    std::int64_t room = 0;  // most that may be kept before, for any later stages
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
  bool has_rate_ = false;       // the forward_only staircases exist
  std::vector<Stairs> stairs_;  // by index(), also for one stage beyond the last
};

// LinearBound is a quick lower bound on the added time under a budget, for problems too large for
// an exact search. For some stages, the bound sums the savings that earlier stages need so that the
// stage's passes fit. The savings are relaxed: a stage may be split between actions, and copies
// cost nothing.
class LinearBound {
 public:
  // Considers `places` stages, evenly spread, always with the last.
  LinearBound(const MemoryProblem& problem, std::size_t places);

  // Returns a lower bound on the added time of permitted plans within the budget.
  std::int64_t added_us(std::int64_t budget_bytes) const;

 private:
  struct Corner {
    std::int64_t peak_bytes;  // from this budget on,
    double added_us;          // at least this time is added; linear between corners
  };

  std::vector<std::vector<Corner>> curves_;  // per place, by ascending peak
};

}  // namespace cox::planner
