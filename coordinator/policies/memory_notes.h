// What policy `memory` remembers between rounds, as named columns with one entry a rank, and the
// actions that failed on a block and rest. Read from and written to a PolicyState; a state of
// another world, other fronts or other budgets starts anew. Value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/memory_config.h"
#include "coordinator/core/policy.h"

namespace cox {

// An action that failed on a block and is not used there before a round.
struct RestingAction {
  std::size_t block = 0;
  MemoryAction action = MemoryAction::keep;
  std::uint64_t until = 0;
};

struct MemoryNotes {
  MemoryNotes(const NumbersState& state, const JobFacts& job, const MemoryConfig& config);
  PolicyState state() const;

  double told = 0;      // digest of what was last said about a round without a change
  double retrying = 0;  // 1 = an action has rested and is tried again with the next plan
  std::vector<RestingAction> resting;

  // One entry a rank.
  std::vector<double> correction;     // bytes, real minus predicted peak, smoothed
  std::vector<double> plan_seen;      // 1 + number of the plan of its last report; 0 = none
  std::vector<double> measured;       // bytes, its newest peak; 0 = none yet
  std::vector<double> limit;          // bytes; 0 = unknown
  std::vector<double> ceiling;        // bytes predicted for a plan that broke the budget; 0 = none
  std::vector<double> ceiling_until;  // round in which that is forgotten
  std::vector<double> slowness;       // own time over the median of all, smoothed; 0 = none yet
  std::vector<double> timed_rounds;
  std::vector<double> straggles;    // 1 = it does
  std::vector<double> room_rounds;  // in a row in which a lighter plan was worth it

 private:
  // Pointers to all columns, in the order of the state.
  template <class Self>
  static auto columns(Self& self);
  bool read(const NumbersState& state, std::size_t blocks);

  std::size_t ranks_;
  double digest_;  // of fronts and budgets
};

}  // namespace cox
