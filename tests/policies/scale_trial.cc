#include "tests/policies/scale_trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/policies/loss_scale/loss_scale.h"

namespace cox::test {
namespace {

constexpr std::uint64_t kReportEvery = 8;  // steps
constexpr std::uint64_t kPlanTakes = 3;    // rounds from a report to the plan in force
constexpr float kLargestHalf = 65504;
constexpr double kBlur = 0.15;
constexpr double kMostLost = 0.05;

ScalerRules rules_of(ScaleRule rule) {
  ScalerRules rules;
  if (rule != ScaleRule::grad_scaler) return rules;
  rules.min_scale = 0;
  rules.max_scale = std::numeric_limits<float>::max();
  rules.headroom_bits = 0;
  return rules;
}

// Returns the fraction of gradients that fp16 flushes to zero, if gradients are spread evenly over
// their bits.
double lost(const TraceGradient& gradient, float log2_scale) {
  const double smallest = gradient.largest - gradient.spread;
  return std::clamp((-25.0 - log2_scale - smallest) / gradient.spread, 0.0, 1.0);
}

class Trial {
 public:
  Trial(ScaleRule rule, TraceKind kind, std::uint64_t seed)
      : has_policy_(rule == ScaleRule::ours), trace_(kind, seed) {
    job_.incarnation = 1;
    job_.world_size = kTraceRanks;
    job_.blocks = {"body"};
    job_.capabilities.precisions = 0xF;
    config_.loss_scale.rules = rules_of(rule);
    plan_ = initial_plan(job_);
    plan_.precision[0] = Precision::fp16;
    plan_.scaler = in_force_ = config_.loss_scale.rules;
    scalers_.fill(initial_state(in_force_));
    evidence_.resize(1);
  }

  ScaleTally run() && {
    tally_.steps = trace_.steps();
    for (std::uint64_t s = 0; s < trace_.steps(); ++s) {
      if (has_policy_ && s > 0 && s % kReportEvery == 0) report(s);
      take(trace_.next(), s);
    }
    judge();
    return tally_;
  }

 private:
  void take(const TraceStep& step, std::uint64_t number) {
    StepBallot merged;
    double blurred = 0;
    bool infinite = false;
    const float log2_scale = std::log2(scalers_[0].scale);
    for (std::size_t r = 0; r < kTraceRanks; ++r) {
      const float scaled = std::exp2(step[r].largest + log2_scale);
      const bool overflow = step[r].infinite || !(scaled <= kLargestHalf);
      StepBallot mine;
      mine.overflow_ranks = overflow ? 1 : 0;
      mine.amax_max = step[r].infinite ? 0 : std::min(scaled, 0.98f * kLargestHalf);
      merge_into(merged, mine);
      infinite = infinite || step[r].infinite;
      if (number + 1 == trace_.steps()) lost_at_end_ += lost(step[r], log2_scale) / kTraceRanks;
      blurred += lost(step[r], log2_scale) / kTraceRanks;
      if (has_policy_) note(step[r], r, overflow, log2_scale);
      if (number + 1000 >= trace_.steps() && !step[r].infinite) {
        peak_ = std::max(peak_, step[r].largest);
      }
    }
    if (merged.overflow_ranks > 0) {
      ++tally_.skipped;
      tally_.unsavable += infinite ? 1 : 0;
    } else {
      tally_.blurred += blurred > kBlur ? 1 : 0;
    }
    const ScalerStep agreed{merged.overflow_ranks > 0, static_cast<float>(merged.amax_max)};
    for (ScalerState& scaler : scalers_) scaler = advance(scaler, in_force_, agreed);
    const bool agree = std::all_of(scalers_.begin(), scalers_.end(),
                                   [this](const ScalerState& s) { return s == scalers_[0]; });
    tally_.disagreements += agree ? 0 : 1;
  }

  void note(const TraceGradient& gradient, std::size_t rank, bool overflow, float log2_scale) {
    const RankId id(static_cast<std::int32_t>(rank));
    BlockEvidence mine;
    mine.sampled = 1000;
    mine.underflow = static_cast<std::uint32_t>(1000 * lost(gradient, log2_scale));
    if (overflow) {
      mine.overflow_backward = 1;
      mine.rank_of_overflow = id;
    } else {
      mine.gradient = {std::exp2(gradient.largest), id};
    }
    evidence_[0] = merge(evidence_[0], mine);
    overflowed_[rank] = overflowed_[rank] || overflow;
  }

  void report(std::uint64_t step) {
    const std::uint64_t round = step / kReportEvery;
    if (round >= due_ && !(in_force_ == plan_.scaler)) in_force_ = plan_.scaler;
    StepSignals signals;
    signals.round = RoundId(round);
    for (std::size_t r = 0; r < kTraceRanks; ++r) {
      RankSignal signal;
      signal.rank = RankId(static_cast<std::int32_t>(r));
      signal.rounds = kReportEvery;
      signal.loss_scale = scalers_[0].scale;
      signal.nonfinite_values = overflowed_[r] ? 1 : 0;
      signals.reports.push_back(signal);
    }
    signals.evidence = std::exchange(evidence_, std::vector<BlockEvidence>(1));
    overflowed_.fill(false);
    StepSummary summary;
    summary.round = signals.round;
    summary.reporting = kTraceRanks;
    summary.rounds = kReportEvery;
    PolicyOutput output = policy_.propose(
        {job_, config_, plan_, signals, summary, {}, history_, {}}, std::move(policy_state_));
    policy_state_ = std::move(output.state);
    if (round < due_) return;  // a plan is in flight
    for (const Proposal& proposal : output.proposals) {
      plan_.scaler = proposal.change.to.scaler;
      due_ = round + kPlanTakes;
    }
  }

  void judge() {
    const float scale = scalers_[0].scale;
    const ScalerRules ours;
    if (trace_.trouble_ends() > trace_.steps()) {
      tally_.not_recovered = scale >= ours.min_scale && scale <= ours.max_scale ? 0 : 1;
      return;
    }
    const float allowed = std::min(kLargestHalf / std::exp2(peak_), ours.max_scale);
    const bool too_low = scale < allowed / 16 && lost_at_end_ > kMostLost;
    tally_.not_recovered = too_low || scale > 2 * allowed ? 1 : 0;
  }

  bool has_policy_;
  ScaleTrace trace_;
  ScaleTally tally_;
  JobFacts job_;
  Config config_;
  Plan plan_;
  History history_;
  ScalerRules in_force_;
  std::uint64_t due_ = 0;
  std::array<ScalerState, kTraceRanks> scalers_{};
  LossScalePolicy policy_;
  PolicyState policy_state_;
  std::vector<BlockEvidence> evidence_;
  std::array<bool, kTraceRanks> overflowed_{};
  float peak_ = -1e30f;
  double lost_at_end_ = 0;
};

}  // namespace

ScaleTally& ScaleTally::operator+=(const ScaleTally& other) {
  steps += other.steps;
  skipped += other.skipped;
  unsavable += other.unsavable;
  blurred += other.blurred;
  not_recovered += other.not_recovered;
  disagreements += other.disagreements;
  return *this;
}

ScaleTally try_rule(ScaleRule rule, TraceKind kind, std::uint64_t seed) {
  return Trial(rule, kind, seed).run();
}

}  // namespace cox::test
