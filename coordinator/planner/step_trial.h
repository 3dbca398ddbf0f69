// StepTrial prices one set of decisions about a step: for each pair of uses of a tensor that follow
// one another, whether the tensor stays in between. What is not there when an operator reads it is
// made again, by the operators that it depends on, from what is there. Internal to the planner;
// step_graph.h is its interface. One thread at a time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/step_graph.h"

namespace cox::planner {

// Of a tensor between two of its uses: it stays; it goes; or it goes, but stays from where a
// later operator's needs happen to make it again.
enum class Stay : std::uint8_t { keep, drop, take_along };

// Between two uses of a tensor, of which the first may be its making.
struct Gap {
  std::int32_t tensor = 0;
  std::int32_t from = 0;  // operator
  std::int32_t to = 0;    // operator that reads it
};

struct StepPrice {
  std::int64_t ns = 0;          // of all runs
  std::int64_t peak_bytes = 0;  // without base_bytes
  std::int32_t peak_at = 0;     // the operator of the step whose turn it was then
  double excess = 0;            // bytes above the target, summed over the operators of the step
};

class StepTrial {
 public:
  // REQUIRES: a valid graph that outlives this.
  explicit StepTrial(const StepGraph& graph);

  const std::vector<Gap>& gaps() const { return gaps_; }
  // REQUIRES: one decision for each gap. `schedule` may be null.
  StepPrice price(const std::vector<Stay>& stays, std::int64_t target_bytes,
                  std::vector<StepAction>* schedule = nullptr);
  // Returns about how long it takes to make the gap's tensor again where the gap ends.
  std::int64_t remake_ns(const std::vector<Stay>& stays, std::size_t gap);
  // Returns how many operators were looked at so far.
  std::size_t work() const { return work_; }

 private:
  using Index = std::int32_t;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }
  static constexpr Index kNone = -1;

  void begin(const std::vector<Stay>& stays, std::int64_t target_bytes,
             std::vector<StepAction>* schedule);
  void make_again(Index now);
  void collect(Index tensor);
  void run_again(Index op, Index now);
  void run(Index op);
  void free(Index tensor);
  void use_up(Index tensor, Index now);
  void leave_after(Index tensor, Index op);
  // The gap that `op` lies in, or that ends there; kNone behind the last use.
  Index gap_at(Index tensor, Index op) const;
  bool stays_over(Index tensor, Index op) const;

  const StepGraph& graph_;
  std::vector<Index> makers_;
  std::vector<Gap> gaps_;               // by tensor, ascending
  std::vector<std::size_t> first_gap_;  // of each tensor; one more

  const std::vector<Stay>* stays_ = nullptr;
  std::vector<StepAction>* schedule_ = nullptr;
  std::int64_t target_ = 0;
  std::int64_t alive_ = 0;
  std::int64_t high_ = 0;  // since the last operator of the step
  StepPrice price_;
  std::vector<char> is_there_;
  std::vector<std::int32_t> local_uses_;
  std::vector<char> is_collected_;
  std::vector<Index> slice_;
  std::vector<Index> stack_;
  std::size_t work_ = 0;
};

}  // namespace cox::planner
