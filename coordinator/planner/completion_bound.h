// A lower bound on what the stages from one on must add, given the bytes kept before it: the same
// problem with a copy-out engine that is infinitely fast. Without further offloads and with nothing
// on its way out, the bound is the truth. One staircase per stage and case; pure once built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/step_tables.h"

namespace cox::planner {

// The case that a bound is asked for.
enum class Further : std::size_t { none = 0, offloads = 1 };     // may later stages be offloaded?
enum class Before : std::size_t { resident = 0, offloaded = 1 };  // the stage just before

class CompletionBound {
 public:
  CompletionBound(const StepTables& tables, std::int64_t budget_bytes);

  // kNever when no way to complete it within the budget is left.
  std::int64_t added_us(std::size_t stage, Before before, Further further,
                        std::int64_t kept_bytes) const;
  // False when a staircase was too long and has been coarsened, downwards.
  bool is_whole() const { return is_whole_; }

 private:
  struct Tread {
    std::int64_t most_kept;  // with at most this much kept before,
    std::int64_t added_us;   // the rest adds this or more
  };
  using Stairs = std::vector<Tread>;  // both ascending

  Stairs& stairs(std::size_t stage, Before before, Further further);
  void build(std::size_t stage, Before before, Further further);
  void append(std::size_t stage, std::size_t action, Before before, Further further, Stairs& out);
  void coarsen(Stairs& stairs);

  const StepTables& tables_;
  std::int64_t room_bytes_;
  std::size_t most_treads_;
  bool is_whole_ = true;
  std::vector<Stairs> stairs_;  // four per stage, and four behind the last
};

}  // namespace cox::planner
