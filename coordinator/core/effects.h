// EffectLog looks back at what was decided: the last stage of a round, after Decide. For every
// change of the plan, and every rank that is named as slow or as well again, it keeps the reason
// with its forecast and the rounds measured before it and after it:
//
//   StepSummary, reasons -> EffectLog -> StepRecord -> status page, API, summary of the run
//
// Pure: the same rounds give the same effects. Changes that go into one plan share its
// measurements, and so do those of a plan that was replaced before any of its rounds counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"

namespace cox {

// Some rounds in a row under one plan.
struct MeasuredRounds {
  std::uint32_t rounds = 0;
  double step_seconds = 0;       // median of the wall time of a step
  double tokens_per_second = 0;  // over all ranks, at that time; 0 where no tokens are counted
  std::uint64_t peak_bytes = 0;  // highest memory peak of a rank; 0 where it is not known
};

struct Effect {
  Reason reason{};
  StepId step{};                        // at which it was decided, or with which the job began
  std::optional<std::uint64_t> plan{};  // the number of the plan with the change; empty = a finding
  MeasuredRounds before{};              // no rounds for findings and for what the job began with
  MeasuredRounds after{};               // no rounds for findings and while the plan is not applied
};
using EffectList = std::vector<Effect>;  // oldest first
// The same, shared: a round that adds one copies none.
using SharedEffects = std::vector<std::shared_ptr<const Effect>>;

class EffectLog {
 public:
  static constexpr std::size_t kKept = 64;           // the newest effects
  static constexpr std::size_t kRoundsBefore = 8;    // at most, directly before the decision
  static constexpr std::size_t kRoundsAfter = 20;    // at most, the first ones that count
  static constexpr std::size_t kSettlingRounds = 3;  // after a switch; they do not count

  // `first_plan`: the number of the plan that all ranks start with.
  explicit EffectLog(std::uint64_t first_plan = 0)
      : applied_(first_plan), first_measured_(first_plan) {}

  // Takes the reasons from before the first round. REQUIRES: no round was added yet.
  void begin(std::span<const Reason> reasons, StepId first_step);
  // `newest` is the plan after the round's decision.
  void add(const StepSummary& summary, std::span<const Reason> reasons, const Plan& newest);

  // Returns the effects, never null. A list that was returned does not change.
  std::shared_ptr<const SharedEffects> list() const { return list_; }

 private:
  void measure(const StepSummary& summary);
  void append(std::span<const Reason> reasons, StepId step, std::uint64_t plan,
              const MeasuredRounds& before);

  std::shared_ptr<const SharedEffects> list_ = std::make_shared<const SharedEffects>();
  std::uint64_t applied_;               // the number of the plan that the ranks apply
  std::uint64_t first_measured_;        // the lowest plan whose effects the rounds show
  std::uint64_t rounds_of_plan_ = 0;    // since they do
  MeasuredRounds before_;               // of the newest round that had counted ones before it
  std::vector<MeasuredRounds> rounds_;  // the newest of those that count, one by one
};

}  // namespace cox
