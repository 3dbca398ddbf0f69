// StepRuns is a step as the runs of its operators, some of them more than once, and the memory that
// each run finds. Internal to the planner; step_graph.h is its interface.
//
//   schedule of a plan -> StepRuns -> improve() (step_improve.h) -> StepRuns -> schedule
//
// When a tensor is freed follows from the runs: after the last read before it is made again, or
// before the step ends. No schedule with the same runs needs less. So adding or taking away a run
// always leaves a schedule that can be executed; only its time and memory change. Within the turn
// of an operator those that run again do so in the order of the step, each once. One thread at a
// time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/planner/step_graph.h"

namespace cox::planner {

// One run of an operator. The first runs, in the order of the step, are turns; an operator that
// runs again does so before the first run of the operator whose turn it is.
struct Run {
  std::int32_t turn = 0;
  std::int32_t op = 0;
  bool is_first() const { return turn == op; }
  friend auto operator<=>(const Run&, const Run&) = default;
};

// Returns the runs of a schedule, ascending, or nothing where an operator runs twice in a turn.
std::optional<std::vector<Run>> runs_of(const std::vector<StepAction>& schedule);

// The uses of a tensor, its makings among them, before and after some run.
struct UsesAround {
  std::optional<Run> before;
  std::optional<Run> after;
};

class StepRuns {
 public:
  // Every operator runs once. REQUIRES: a valid graph that outlives this.
  explicit StepRuns(const StepGraph& graph);

  // Replaces all runs. `room_bytes` is the budget without base_bytes.
  // REQUIRES: ascending; each operator has its first run; what runs again comes after it.
  void assign(const std::vector<Run>& runs, std::int64_t room_bytes);

  // REQUIRES: insert: a run that is not there, in a later turn than its operator's; erase: one that
  // is there and is not the first.
  void insert(Run run);
  void erase(Run run);

  const std::vector<Run>& runs() const { return runs_; }
  bool has(Run run) const;
  // Bytes while runs()[i] runs, without base_bytes.
  const std::vector<std::int64_t>& bytes() const { return bytes_; }
  std::int64_t peak_bytes() const;
  // Bytes above the room, summed over all runs; 0: it fits.
  std::int64_t excess() const { return excess_; }
  std::int64_t room_bytes() const { return room_; }
  std::int64_t added_ns() const { return added_ns_; }

  std::int32_t operators() const { return static_cast<std::int32_t>(reads_.size()); }
  std::size_t tensors() const { return uses_.size(); }
  std::size_t added_runs() const { return runs_.size() - reads_.size(); }
  std::int32_t maker(std::int32_t tensor) const { return makers_[at(tensor)]; }
  const std::vector<std::int32_t>& makes(std::int32_t op) const {
    return graph_.operators[at(op)].makes;
  }
  // What an operator reads, each tensor once.
  const std::vector<std::int32_t>& reads(std::int32_t op) const { return reads_[at(op)]; }
  const std::vector<Run>& uses(std::int32_t tensor) const { return uses_[at(tensor)]; }
  UsesAround around(std::int32_t tensor, Run run) const;
  // Whether the tensor must be there after a run, when its next use is `after`.
  bool is_needed(std::int32_t tensor, const std::optional<Run>& after) const;

  // Whether anything that the run makes is needed after it.
  bool is_useful(Run run) const;

  std::vector<StepAction> schedule() const;
  // Returns how many runs were looked at so far.
  std::size_t work() const { return work_; }

 private:
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  std::size_t position(Run run) const;
  // Adds to what there is behind `from`, up to and with the run at `last`.
  void add(const std::optional<Run>& from, std::size_t last, std::int64_t bytes);
  enum class Change : std::uint8_t { insertion, removal };
  void change_tensors(Run run, std::size_t position, Change change);
  std::int64_t above(std::int64_t bytes) const { return bytes > room_ ? bytes - room_ : 0; }

  const StepGraph& graph_;
  std::vector<std::int32_t> makers_;
  std::vector<std::vector<std::int32_t>> reads_;
  std::vector<std::int64_t> made_bytes_;  // of each operator
  std::vector<Run> runs_;
  std::vector<std::int64_t> bytes_;
  std::vector<std::vector<Run>> uses_;  // of each tensor, ascending
  std::int64_t room_ = 0;
  std::int64_t excess_ = 0;
  std::int64_t added_ns_ = 0;
  std::size_t work_ = 0;
};

}  // namespace cox::planner
