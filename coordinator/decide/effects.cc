#include "coordinator/decide/effects.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/selection.h"
#include "coordinator/core/text.h"
#include "coordinator/estimates/slowness.h"

namespace cox {
namespace {

constexpr std::size_t kMostRests = 64;
constexpr std::size_t kMostCondemned = 4;
constexpr std::size_t kMostAccounts = 16;
constexpr std::uint32_t kMostDoublings = 6;
constexpr std::uint64_t kOnsetError = 4;         // rounds by which the onset of slowness may be off
constexpr std::uint64_t kTellSecondsEvery = 16;  // rounds

bool is_finding(const Reason& reason) {
  return reason.code == ReasonCode::straggler_found || reason.code == ReasonCode::straggler_gone;
}

bool is_change(const Reason& reason) {
  return reason.outcome == Outcome::changed || reason.outcome == Outcome::clamped;
}

bool is_kept(const Reason& reason) {
  return is_change(reason) || is_finding(reason);
}

// --- rounds -----------------------------------------------------------------------------------

template <class Value>
double median_over(std::span<const RoundTime> rounds, Value RoundTime::*value) {
  std::vector<double> values;
  for (const RoundTime& round : rounds) values.push_back(static_cast<double>(round.*value));
  return median_of(values);
}

MeasuredRounds together(std::span<const RoundTime> rounds) {
  MeasuredRounds all;
  if (rounds.empty()) return all;
  all.rounds = static_cast<std::uint32_t>(rounds.size());
  all.step_seconds = median_over(rounds, &RoundTime::seconds);
  all.tokens_per_second = median_over(rounds, &RoundTime::tokens_per_second);
  for (const RoundTime& round : rounds) all.peak_bytes = std::max(all.peak_bytes, round.peak_bytes);
  return all;
}

bool counts_samples(std::span<const RoundTime> rounds) {
  return std::ranges::all_of(rounds, [](const RoundTime& round) { return round.samples > 0; });
}

enum class Times : std::uint8_t { of_step, of_sample };

std::vector<double> times_of(std::span<const RoundTime> rounds, Times what) {
  std::vector<double> times;
  for (const RoundTime& round : rounds) {
    times.push_back(what == Times::of_sample ? round.seconds / round.samples : round.seconds);
  }
  return times;
}

RatioInterval ratio_of(const Effects& effects, Confidence confidence) {
  const std::vector<RoundTime>& before = effects.trial->before;
  const bool has_samples = counts_samples(before) && counts_samples(effects.recent);
  const Times what = has_samples ? Times::of_sample : Times::of_step;
  return paired_ratio(times_of(before, what), times_of(effects.recent, what), confidence);
}

// --- the list ---------------------------------------------------------------------------------

template <class Edit>
void edit_effects(Effects& effects, std::uint64_t first_plan, std::uint64_t plan,
                  const Edit& edit) {
  auto list = std::make_shared<SharedEffects>(*effects.list);
  for (std::shared_ptr<const Effect>& shared : *list) {
    if (!shared->plan || *shared->plan < first_plan || *shared->plan > plan) continue;
    auto edited = std::make_shared<Effect>(*shared);
    edit(*edited);
    shared = std::move(edited);
  }
  effects.list = std::move(list);
}

void append(Effects& effects, std::vector<Effect> added) {
  SharedEffects list = *effects.list;
  for (Effect& effect : added) list.push_back(std::make_shared<const Effect>(std::move(effect)));
  if (list.size() > Effects::kKept) list.erase(list.begin(), list.end() - Effects::kKept);
  effects.list = std::make_shared<const SharedEffects>(std::move(list));
}

std::uint32_t count_sharing(const Effects& effects, const Trial& trial) {
  return static_cast<std::uint32_t>(std::ranges::count_if(*effects.list, [&](const auto& effect) {
    return effect->plan && *effect->plan >= trial.first_plan && *effect->plan <= trial.plan;
  }));
}

// --- seconds ----------------------------------------------------------------------------------

void tell_seconds(Effects& effects) {
  for (const Account& account : effects.accounts) {
    edit_effects(effects, account.first_plan, account.plan,
                 [&](Effect& effect) { effect.seconds_saved = account.seconds_saved; });
  }
}

void open_account(Effects& effects, const Trial& trial, const RatioInterval& measured) {
  const bool is_sure = measured.is_known() && (measured.high < 1 || measured.low > 1);
  const bool is_own =  // undoing by Decide earns no policy a gain
      std::ranges::any_of(trial.changes, [](const auto& c) { return c.kind == PolicyKind::none; });
  if (!is_sure || is_own || trial.changes.empty()) return;
  Account account{trial.first_plan, trial.plan, measured.ratio, 0, trial.changes};
  double seconds = 0;
  for (const RoundTime& round : effects.recent) seconds += round.seconds;
  add_seconds(account, seconds, effects.scores);
  if (effects.accounts.size() == kMostAccounts) effects.accounts.erase(effects.accounts.begin());
  effects.accounts.push_back(std::move(account));
}

// --- verdicts ---------------------------------------------------------------------------------

struct Finding {
  Verdict verdict = Verdict::none;
  Doubt doubt = Doubt::none;
};

// Returns the forecast ratio of the changes in a trial that do not promise time; 0 = not known.
double cost_of_others(const Trial& trial) {
  double ratio = 1;
  for (const AppliedChange& change : trial.changes) {
    if (change.is_for_time || change.knob == Knob::other) continue;
    ratio *= change.promised_ratio;
  }
  return ratio;
}

bool promises_time(const Trial& trial) {
  return std::ranges::any_of(trial.changes, &AppliedChange::is_for_time);
}

// Judges by two confidences: 95 % to report, `to_condemn` to condemn.
Finding judge(const Effects& effects, const RatioInterval& measured, Confidence to_condemn) {
  const Trial& trial = *effects.trial;
  const auto not_sure = [](Doubt doubt) { return Finding{Verdict::not_sure, doubt}; };
  if (!promises_time(trial)) return {};
  if (!measured.is_known()) return not_sure(Doubt::few_rounds_before);
  const double others = cost_of_others(trial);
  if (others == 0) return not_sure(Doubt::shared);
  if (measured.high < others) return {Verdict::helped, Doubt::none};
  if (ratio_of(effects, to_condemn).low > others) return {Verdict::did_not_help, Doubt::none};
  return not_sure(Doubt::noise);
}

void count_verdict(Effects& effects, const Trial& trial, Verdict verdict) {
  for (const AppliedChange& change : trial.changes) {
    if (!change.is_for_time) continue;
    PolicyScore& score = score_of(effects.scores, change.kind);
    if (verdict == Verdict::helped) ++score.helped;
    if (verdict == Verdict::did_not_help) ++score.did_not_help;
    if (verdict == Verdict::not_sure) ++score.not_sure;
  }
}

void condemn(Effects& effects, const Trial& trial, const RatioInterval& measured) {
  Condemned condemned{trial.first_plan,   trial.plan,        {},
                      trial.knobs_before, trial.knobs_after, measured};
  for (const AppliedChange& change : trial.changes) {
    if (change.is_for_time && change.kind != PolicyKind::none) {
      condemned.changes.push_back(change);
    }
  }
  const bool is_full = effects.condemned.size() == kMostCondemned;
  if (condemned.changes.empty() || is_full) return;
  effects.condemned.push_back(std::move(condemned));
}

// Ends the trial with the rounds measured so far.
void conclude(Effects& effects, Doubt doubt, Confidence to_condemn) {
  const Trial& trial = *effects.trial;
  const RatioInterval measured = ratio_of(effects, Confidence::percent_95);
  Finding finding = judge(effects, measured, to_condemn);
  const bool is_void = !measured.is_known() || doubt == Doubt::straggler_recovered;
  if (finding.verdict != Verdict::none && doubt != Doubt::none && is_void) {
    finding = {Verdict::not_sure, doubt};
  }
  const bool is_valid = doubt != Doubt::straggler_recovered;
  if (is_valid) open_account(effects, trial, measured);
  const double seconds =
      is_valid && !effects.accounts.empty() && effects.accounts.back().plan == trial.plan
          ? effects.accounts.back().seconds_saved
          : 0;
  const MeasuredRounds before = together(trial.before);
  const MeasuredRounds after = together(effects.recent);
  edit_effects(effects, trial.first_plan, trial.plan, [&](Effect& effect) {
    effect.before = before;
    effect.after = after;
    effect.measured = measured;
    effect.verdict = finding.verdict;
    effect.doubt = finding.doubt;
    effect.seconds_saved = seconds;
  });
  count_verdict(effects, trial, finding.verdict);
  if (finding.verdict == Verdict::did_not_help) condemn(effects, trial, measured);
  effects.trial.reset();
}

void show_progress(Effects& effects) {
  const Trial& trial = *effects.trial;
  const MeasuredRounds before = together(trial.before);
  const MeasuredRounds after = together(effects.recent);
  const RatioInterval measured = ratio_of(effects, Confidence::percent_95);
  edit_effects(effects, trial.first_plan, trial.plan, [&](Effect& effect) {
    effect.before = before;
    effect.after = after;
    effect.measured = measured;
  });
}

// Call after another round under the plan.
void look_at_trial(Effects& effects) {
  const std::size_t rounds = effects.recent.size();
  if (rounds >= Effects::kRoundsAfter) {
    return conclude(effects, Doubt::none, Confidence::percent_99);
  }
  if (rounds == 16 || rounds == 32) {
    const RatioInterval strict = ratio_of(effects, Confidence::percent_99_9);
    const bool is_bad =
        judge(effects, strict, Confidence::percent_99_9).verdict == Verdict::did_not_help;
    if (is_bad) return conclude(effects, Doubt::none, Confidence::percent_99_9);
  }
  if (rounds <= 16 || rounds % 8 == 0) show_progress(effects);
}

// --- a round ----------------------------------------------------------------------------------

void follow_plan(Effects& effects, const StepSummary& summary, const Plan& newest,
                 std::uint64_t samples) {
  const std::uint64_t applied = std::min(summary.plan_applied_max, newest.id.number);
  if (applied > effects.applied) {
    effects.applied = applied;
    effects.rounds_of_plan = 0;
    effects.recent.clear();
    if (effects.trial && effects.trial->plan == applied) effects.trial->applied_in = summary.round;
  }
  if (effects.applied == newest.id.number) effects.samples = static_cast<double>(samples);
}

void forget_before(std::vector<RoundTime>& rounds, RoundId first) {
  std::erase_if(rounds, [first](const RoundTime& round) { return round.round < first; });
}

// A rank or the job has been slow since a round. Earlier times belong to other circumstances.
void note_slow_since(Effects& effects, RoundId since) {
  if (effects.trial) {
    Trial& trial = *effects.trial;
    const std::uint64_t settled =
        trial.applied_in ? trial.applied_in->value() + Effects::kSettlingRounds : 0;
    if (trial.applied_in && since.value() > settled + kOnsetError) {
      std::vector<RoundTime> all = effects.recent;
      std::erase_if(effects.recent, [since](const RoundTime& r) { return r.round >= since; });
      conclude(effects, Doubt::straggler_found, Confidence::percent_99);
      effects.recent = std::move(all);
    } else if (!trial.before.empty() && since <= trial.before.back().round) {
      forget_before(trial.before, since);
    }
  }
  forget_before(effects.recent, since);
}

// Slowness has ended in some unknown round before this one.
void note_recovery(Effects& effects) {
  if (effects.trial && effects.trial->applied_in) {
    conclude(effects, Doubt::straggler_recovered, Confidence::percent_99);
  }
  effects.recent.clear();
}

void note_slow_ranks(Effects& effects, const std::vector<SlowRank>& now) {
  std::size_t still_slow = 0;
  auto before = effects.slow.begin();
  for (const SlowRank& slow : now) {
    before = std::find_if(before, effects.slow.end(), [&](RankId r) { return r >= slow.rank; });
    if (before == effects.slow.end() || *before != slow.rank) {
      note_slow_since(effects, slow.since);
    } else {
      ++still_slow;
    }
  }
  if (still_slow < effects.slow.size()) note_recovery(effects);
  effects.slow.clear();
  for (const SlowRank& slow : now) effects.slow.push_back(slow.rank);
}

// Under a new plan the job's pace is learnt anew, so the end of slowness there proves no recovery.
void note_slow_job(Effects& effects, const JobPace& pace) {
  const std::optional<std::uint64_t> before = effects.slow_job_plan;
  effects.slow_job_plan.reset();
  if (pace.slow) effects.slow_job_plan = pace.plan;
  if (pace.slow && !before) note_slow_since(effects, pace.slow->since);
  if (!pace.slow && before == pace.plan) note_recovery(effects);
}

void add_round(std::vector<RoundTime>& rounds, const RoundTime& round) {
  if (rounds.size() == Effects::kRoundsAfter) rounds.erase(rounds.begin());
  rounds.push_back(round);
}

// Until a plan is in force, rounds belong to the stretch before it.
void measure(Effects& effects, const StepSummary& summary) {
  const double seconds = summary.wall_seconds.median;
  const bool is_timed = summary.wall_seconds.count > 0 && seconds > 1e-9 && is_believable(seconds);
  if (!is_timed) return;
  if (effects.rounds_of_plan < Effects::kSettlingRounds) {
    ++effects.rounds_of_plan;
    return;
  }
  RoundTime round{summary.round, seconds, effects.samples, 0, summary.memory_peak_bytes};
  const double covered = seconds * summary.rounds;
  if (covered > 0) round.tokens_per_second = static_cast<double>(summary.tokens) / covered;
  add_round(effects.recent, round);
  if (!effects.trial) return;
  effects.trial->applied_in ? look_at_trial(effects) : add_round(effects.trial->before, round);
}

void count_seconds(Effects& effects, const StepSummary& summary) {
  if (effects.accounts.empty() || summary.wall_seconds.count == 0) return;
  const double seconds = summary.wall_seconds.median * summary.rounds;
  if (!(seconds > 0 && is_believable(seconds))) return;
  for (Account& account : effects.accounts) add_seconds(account, seconds, effects.scores);
  if (summary.round.value() % kTellSecondsEvery == 0) tell_seconds(effects);
}

// The first plan was decided before any rank had made a step, so its effects get a step and round
// now.
void date_start(Effects& effects, const StepSummary& summary) {
  if (!effects.trial || effects.trial->applied_in != RoundId(0)) return;
  effects.trial->applied_in = summary.round;
  edit_effects(effects, effects.trial->first_plan, effects.trial->plan, [&](Effect& effect) {
    effect.step = summary.step;
    effect.reason.round = summary.round;
  });
}

// --- a decision -------------------------------------------------------------------------------

bool is_moved(Knob knob, const Plan& before, const Plan& after) {
  bool is_moved = false;
  for_each_field_of(
      knob, [&](const auto& field) { is_moved = is_moved || !is_same(field, before, after); });
  return is_moved;
}

void close_accounts(Effects& effects, const Plan& before, const Plan& after) {
  tell_seconds(effects);
  std::erase_if(effects.accounts, [&](const Account& account) {
    return std::ranges::any_of(account.changes, [&](const AppliedChange& change) {
      return is_moved(change.knob, before, after);
    });
  });
}

void open_trial(Effects& effects, RoundDecision& decision) {
  close_accounts(effects, decision.before, decision.after);
  const bool is_unmeasured =
      effects.trial && (!effects.trial->applied_in || effects.recent.empty());
  if (effects.trial && !is_unmeasured) {
    conclude(effects, Doubt::replaced, Confidence::percent_99);
  }
  if (!effects.trial) {
    effects.trial = Trial{};
    effects.trial->first_plan = decision.after.id.number;
    effects.trial->before = effects.recent;
    effects.trial->knobs_before = {decision.before};
  }
  Trial& trial = *effects.trial;
  trial.plan = decision.after.id.number;
  trial.applied_in.reset();
  trial.knobs_after = {decision.after};
  std::ranges::move(decision.changes, std::back_inserter(trial.changes));
}

std::vector<Effect> effects_of(std::span<const Reason> reasons, StepId step) {
  std::vector<Effect> added;
  for (const Reason& reason : reasons) {
    if (!is_kept(reason)) continue;
    added.emplace_back();
    added.back().reason = reason;
    added.back().step = step;
  }
  return added;
}

bool is_known_start(const Effects& effects, const Reason& reason) {
  return std::ranges::any_of(*effects.list, [&](const auto& effect) {
    return effect->reason.policy == reason.policy && effect->reason.text == reason.text;
  });
}

bool are_sane(std::span<const RoundTime> rounds, std::size_t most) {
  return rounds.size() <= most && std::ranges::all_of(rounds, [](const RoundTime& round) {
           return round.seconds > 1e-9 && is_believable(round.seconds) &&
                  is_believable(round.samples) && is_believable(round.tokens_per_second);
         });
}

}  // namespace

std::string verdict_text(const Effect& effect) {
  if (effect.verdict == Verdict::none) return {};
  std::string text(to_string(effect.verdict));
  if (effect.is_taken_back) text += ", taken back";
  if (effect.doubt != Doubt::none) text += concat(": ", effect.doubt);
  return text;
}

bool Effects::is_sane() const {
  const bool scores_ascend = std::ranges::adjacent_find(scores, std::ranges::greater_equal{},
                                                        &PolicyScore::policy) == scores.end();
  const auto is_condemned = [](const Condemned& one) {
    return !one.changes.empty() && std::ranges::all_of(one.changes, &AppliedChange::is_sane) &&
           one.measured.ratio > 0;
  };
  return scores_ascend && are_sane(recent, kRoundsAfter) && is_believable(samples) &&
         std::ranges::all_of(scores, &PolicyScore::is_sane) && std::ranges::is_sorted(slow) &&
         rounds_of_plan <= kSettlingRounds &&
         (!trial || (are_sane(trial->before, kRoundsBefore) &&
                     std::ranges::all_of(trial->changes, &AppliedChange::is_sane))) &&
         condemned.size() <= kMostCondemned && std::ranges::all_of(condemned, is_condemned) &&
         rests.size() <= kMostRests && accounts.size() <= kMostAccounts &&
         std::ranges::all_of(accounts, &Account::is_sane);
}

Effects effects_of_start(Effects before, std::uint32_t incarnation, const Plan& first_plan,
                         RoundId last_round) {
  if (before.incarnation == incarnation && incarnation != 0) return before;
  if (incarnation == 0 && before.applied >= first_plan.id.number) return before;
  Effects fresh;
  fresh.incarnation = incarnation;
  fresh.applied = first_plan.id.number;
  fresh.scores = std::move(before.scores);
  for (Rest& rest : before.rests) {  // rounds count anew
    const std::uint64_t left =
        rest.until > last_round ? rest.until.value() - last_round.value() : 0;
    rest.until = RoundId(left);
    fresh.rests.push_back(std::move(rest));
  }
  return fresh;
}

void note_start(Effects& effects, std::span<const Reason> reasons, const Plan& first_plan) {
  std::vector<Effect> added = effects_of(reasons, StepId{});
  std::erase_if(added, [&](const Effect& effect) {
    return is_finding(effect.reason) || is_known_start(effects, effect.reason);
  });
  if (added.empty()) return;
  for (Effect& effect : added) effect.plan = first_plan.id.number;
  append(effects, std::move(added));
  Trial trial;
  trial.first_plan = trial.plan = first_plan.id.number;
  trial.applied_in = RoundId(0);
  effects.trial = std::move(trial);
  const std::uint32_t sharing = count_sharing(effects, *effects.trial);
  edit_effects(effects, first_plan.id.number, first_plan.id.number,
               [&](Effect& effect) { effect.sharing = sharing; });
}

Effects learn_effects(Effects before, const StepSummary& summary, const Estimates& estimates,
                      const Plan& newest, std::uint64_t samples) {
  Effects effects = std::move(before);
  if (summary.reporting == 0) return effects;
  date_start(effects, summary);
  follow_plan(effects, summary, newest, samples);
  note_slow_ranks(effects, estimates.slowness.slow);
  note_slow_job(effects, estimates.slowness.pace);
  measure(effects, summary);
  count_seconds(effects, summary);
  return effects;
}

void note_decision(Effects& effects, RoundDecision decision) {
  std::vector<Effect> added = effects_of(decision.reasons, decision.summary.step);
  const bool is_new = decision.after.id.number != decision.before.id.number;
  if (is_new) open_trial(effects, decision);
  if (added.empty()) return;
  for (Effect& effect : added) {
    if (!is_new || !is_change(effect.reason)) continue;
    effect.plan = decision.after.id.number;
    effect.before = together(effects.trial->before);
  }
  append(effects, std::move(added));
  if (!is_new) return;
  const Trial& trial = *effects.trial;
  const std::uint32_t sharing = count_sharing(effects, trial);
  const Verdict verdict = promises_time(trial) ? Verdict::measuring : Verdict::none;
  edit_effects(effects, trial.first_plan, trial.plan, [&](Effect& effect) {
    effect.sharing = sharing;
    effect.verdict = verdict;
  });
}

StepPace step_pace(const Effects& effects) {
  if (effects.recent.empty()) return {};
  return {median_over(effects.recent, &RoundTime::seconds),
          noise_of_series(times_of(effects.recent, Times::of_step))};
}

Rest* find_rest(Effects& effects, std::string_view policy, Knob knob, RoundId now) {
  constexpr std::uint64_t kLongest = std::uint64_t{Effects::kRestRounds} << kMostDoublings;
  const auto found = std::ranges::find_if(effects.rests, [&](const Rest& rest) {
    return rest.policy == policy && rest.knob == knob && rest.until > now &&
           rest.until.value() - now.value() <= kLongest;
  });
  return found == effects.rests.end() ? nullptr : &*found;
}

RoundId note_taken_back(Effects& effects, RoundId now) {
  const Condemned condemned = std::move(effects.condemned.front());
  effects.condemned.erase(effects.condemned.begin());
  edit_effects(effects, condemned.first_plan, condemned.plan, [&](Effect& effect) {
    effect.is_taken_back = effect.reason.forecast.promises_time() &&
                           std::ranges::any_of(condemned.changes, [&](const AppliedChange& change) {
                             return change.kind == effect.reason.policy;
                           });
  });
  RoundId until = now;
  for (const AppliedChange& change : condemned.changes) {
    ++score_of(effects.scores, change.kind).taken_back;
    auto rest = std::ranges::find_if(effects.rests, [&](const Rest& known) {
      return known.policy == change.policy && known.knob == change.knob;
    });
    if (rest == effects.rests.end()) {
      if (effects.rests.size() == kMostRests) effects.rests.erase(effects.rests.begin());
      effects.rests.push_back({change.policy, change.knob, {}, 0, false});
      rest = effects.rests.end() - 1;
    }
    const bool is_counted = rest->until > now;  // another block of the same plan
    if (!is_counted) {
      const std::uint64_t rounds = std::uint64_t{Effects::kRestRounds}
                                   << std::min(rest->times, kMostDoublings);
      rest->times = std::min(rest->times + 1, kMostDoublings);
      rest->until = RoundId(now.value() + rounds);
      rest->told = false;
    }
    until = std::max(until, rest->until);
  }
  return until;
}

}  // namespace cox
