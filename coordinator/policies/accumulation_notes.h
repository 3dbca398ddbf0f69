// AccumulationNotes: what policy `accumulation` remembers between rounds: what it has said, and
// measurements since the plan last changed. Reads a NumbersState and writes it back; a state that
// it cannot have written counts as fresh. Value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/core/policy.h"

namespace cox {

// One round, or the median of some. Finite and not negative.
struct SyncCost {
  double anchor = 0;        // that would meet the target
  double sync_seconds = 0;  // a step
  double work_seconds = 0;  // a step, of the slowest rank
};

class AccumulationNotes {
 public:
  enum class Said : unsigned { unable = 1, capped = 2 };
  static constexpr std::size_t kWindow = 32;  // rounds looked back

  // `ranks` whose speeds are kept, may be 0.
  AccumulationNotes(NumbersState state, std::size_t ranks);

  bool has_said(Said what) const;
  // True the first time; false when it had been said and not taken back.
  bool say_once(Said what);
  void take_back(Said what);

  // Forgets measurements made under another plan.
  void start_plan(std::uint64_t number);
  void forget_rounds();
  void add(const SyncCost& cost);
  double rounds() const;    // since the plan changed
  SyncCost middle() const;  // lower medians of the last ones; requires rounds() > 0

  // Of each rank since the plan changed, optimizer aside.
  std::span<double> work_seconds();
  std::span<double> samples();

  PolicyState release() && { return PolicyState::of(std::move(state_)); }

 private:
  std::span<double> column(std::size_t index);
  std::span<const double> filled(std::size_t index) const;

  std::size_t ranks_ = 0;
  NumbersState state_;  // values: said, plan, rounds; three rings; two columns of ranks
};

}  // namespace cox
