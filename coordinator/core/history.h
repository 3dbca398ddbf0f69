// History: the last rounds in short, for policies that compare now with before. Bounded; part of
// the control state that is journalled, saved with the training state and restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "coordinator/core/summary.h"

namespace cox {

struct RoundFacts {
  RoundId round{};
  StepId step{};
  double loss = 0;  // NaN when no rank had a finite one
  double gradient_norm = 0;
  double own_seconds_median = 0;
  double wall_seconds_median = 0;
  std::int32_t nonfinite_ranks = 0;
  std::uint64_t plan_applied = 0;
};

class History {
 public:
  static constexpr std::size_t kCapacity = 256;

  void add(const StepSummary& summary);
  void add(const RoundFacts& facts);

  bool empty() const { return rounds_.empty(); }
  std::size_t size() const { return rounds_.size(); }
  const std::deque<RoundFacts>& rounds() const { return rounds_; }  // oldest first

 private:
  std::deque<RoundFacts> rounds_;
};

}  // namespace cox
