#include "coordinator/core/history.h"

namespace cox {

void History::add(const StepSummary& summary) {
  RoundFacts facts;
  facts.round = summary.round;
  facts.step = summary.step;
  facts.loss = summary.loss;
  facts.gradient_norm = summary.gradient_norm;
  facts.own_seconds_median = summary.own_seconds.median;
  facts.wall_seconds_median = summary.wall_seconds.median;
  facts.nonfinite_ranks = summary.nonfinite_ranks;
  facts.plan_applied = summary.plan_applied_max;
  add(facts);
}

void History::add(const RoundFacts& facts) {
  if (rounds_.size() == kCapacity) rounds_.pop_front();
  rounds_.push_back(facts);
}

}  // namespace cox
