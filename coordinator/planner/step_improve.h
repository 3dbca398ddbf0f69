// improve() looks for a faster schedule of a step within its room: it adds, takes away and shifts
// single runs at random (simulated annealing over StepRuns). Internal to the planner; step_graph.h
// is its interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/planner/step_runs.h"

namespace cox::planner {

// Draws the same numbers everywhere; quality does not matter much.
class Draws {
 public:
  // REQUIRES: n > 0.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  // About exponentially distributed with mean 1, by arithmetic that is the same on all machines.
  double exponential();

 private:
  std::uint64_t next();
  std::uint64_t state_ = 20161906;
};

// What was found: the runs, ascending, and the time of those that are not first ones.
struct Improved {
  std::vector<Run> runs;
  std::int64_t added_ns = 0;
};
// Starts from the runs of `steps`, whether they fit or not, and changes them; looks at about
// `most_work` runs. Returns the fastest runs that fit, those it starts from among them, or nothing.
std::optional<Improved> improve(StepRuns& steps, std::int64_t step_ns, std::size_t most_work,
                                Draws& draws);

}  // namespace cox::planner
