#include "coordinator/core/effects.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

bool is_finding(const Reason& reason) {
  return reason.code == ReasonCode::straggler_found || reason.code == ReasonCode::straggler_gone;
}

bool is_change(const Reason& reason) {
  return reason.outcome == Outcome::changed || reason.outcome == Outcome::clamped;
}

bool is_kept(const Reason& reason) {
  return is_change(reason) || is_finding(reason);
}

MeasuredRounds one_round(const StepSummary& summary) {
  MeasuredRounds round{1, summary.wall_seconds.median, 0, summary.memory_peak_bytes};
  const double seconds = round.step_seconds * summary.rounds;
  if (seconds > 0) round.tokens_per_second = static_cast<double>(summary.tokens) / seconds;
  return round;
}

template <class Rounds, class Value>
double median_over(const Rounds& rounds, Value MeasuredRounds::*value) {
  std::vector<double> values;
  for (const MeasuredRounds& round : rounds) values.push_back(round.*value);
  return median_of(values);
}

MeasuredRounds together(std::span<const MeasuredRounds> rounds) {
  MeasuredRounds all;
  if (rounds.empty()) return all;
  all.rounds = static_cast<std::uint32_t>(rounds.size());
  all.step_seconds = median_over(rounds, &MeasuredRounds::step_seconds);
  all.tokens_per_second = median_over(rounds, &MeasuredRounds::tokens_per_second);
  for (const MeasuredRounds& round : rounds) {
    all.peak_bytes = std::max(all.peak_bytes, round.peak_bytes);
  }
  return all;
}

}  // namespace

void EffectLog::begin(std::span<const Reason> reasons, StepId first_step) {
  append(reasons, first_step, applied_, {});
}

void EffectLog::add(const StepSummary& summary, std::span<const Reason> reasons,
                    const Plan& newest) {
  measure(summary);
  if (std::none_of(reasons.begin(), reasons.end(), is_kept)) return;  // most rounds
  const std::span<const MeasuredRounds> rounds(rounds_);
  if (!rounds.empty()) before_ = together(rounds.last(std::min(rounds.size(), kRoundsBefore)));
  append(reasons, summary.step, newest.id.number, before_);
}

// The round that agreed on a plan still ran under the one before.
void EffectLog::measure(const StepSummary& summary) {
  if (summary.plan_applied_max > applied_) {
    applied_ = summary.plan_applied_max;
    if (!rounds_.empty()) first_measured_ = applied_;
    rounds_of_plan_ = 0;
    rounds_.clear();
  }
  if (summary.wall_seconds.count == 0 || ++rounds_of_plan_ <= kSettlingRounds) return;
  if (rounds_.size() == kRoundsAfter) rounds_.erase(rounds_.begin());
  rounds_.push_back(one_round(summary));
  if (rounds_of_plan_ > kSettlingRounds + kRoundsAfter) return;
  const auto is_under_it = [this](const std::shared_ptr<const Effect>& effect) {
    return effect->plan && *effect->plan >= first_measured_ && *effect->plan <= applied_;
  };
  if (std::none_of(list_->begin(), list_->end(), is_under_it)) return;
  auto list = std::make_shared<SharedEffects>(*list_);
  for (std::shared_ptr<const Effect>& shared : *list) {
    if (!is_under_it(shared)) continue;
    auto measured = std::make_shared<Effect>(*shared);
    measured->after = together(rounds_);
    shared = std::move(measured);
  }
  list_ = std::move(list);
}

void EffectLog::append(std::span<const Reason> reasons, StepId step, std::uint64_t plan,
                       const MeasuredRounds& before) {
  if (std::none_of(reasons.begin(), reasons.end(), is_kept)) return;
  SharedEffects list = *list_;
  for (const Reason& reason : reasons) {
    if (!is_kept(reason)) continue;
    auto effect = std::make_shared<Effect>();
    effect->reason = reason;
    effect->step = step;
    if (is_change(reason)) {
      effect->plan = plan;
      effect->before = before;
    }
    list.push_back(std::move(effect));
  }
  if (list.size() > kKept) list.erase(list.begin(), list.end() - kKept);
  list_ = std::make_shared<const SharedEffects>(std::move(list));
}

}  // namespace cox
