// Effects: the promises and results of decisions. A change that surely did not bring the shorter
// step that it promised is taken back (docs/decisions.md). Decide keeps the value as the state
// named "effects", journalled and saved like the states of policies. Pure functions; the same
// rounds give the same effects. Effects take part in a round on both sides of the policies:
//
//   StepSummary, Estimates -> learn_effects -> policies, Draft -> note_decision -> next round
//                                    \-> take-back (decide.cc)      \-> page, API, closing table
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/paired_ratio.h"
#include "coordinator/decide/policy_score.h"
#include "coordinator/estimates/estimates.h"

namespace cox {

// A run of rounds under one plan.
struct MeasuredRounds {
  std::uint32_t rounds = 0;
  double step_seconds = 0;       // median of the wall time of a step
  double tokens_per_second = 0;  // over all ranks, at the median time; 0 = tokens are not counted
  std::uint64_t peak_bytes = 0;  // highest memory peak of a rank; 0 = not known

  static auto fields(auto& self) {
    return message("MeasuredRounds", field(1, "rounds", self.rounds),
                   field(2, "step_seconds", self.step_seconds),
                   field(3, "tokens_per_second", self.tokens_per_second),
                   field(4, "peak_bytes", self.peak_bytes));
  }
};

// The verdict on a change. A change that promised a shorter step (Forecast::promises_time) helped
// if the interval of the ratio lies below 1. The change did not help if the 99 % interval lies
// above 1, or the 99.9 % interval does after 16 or 32 rounds. Other changes get no verdict, because
// a necessity promises no time. States keep the values: never renumber.
enum class Verdict : std::uint8_t {
  none = 0,       // no shorter step was promised
  measuring = 1,  // or not applied yet
  helped = 2,
  did_not_help = 3,
  not_sure = 4,
};
constexpr std::string_view to_string(Verdict verdict) {
  constexpr std::array<std::string_view, 5> kNames = {"none", "measuring", "helped", "did not help",
                                                      "not sure"};
  return kNames[static_cast<std::size_t>(verdict)];
}
template <>
inline constexpr Verdict kLargestOf<Verdict> = Verdict::not_sure;
template <>
inline constexpr std::string_view kNameOf<Verdict> = "Verdict";

// The reason for a verdict "not sure".
enum class Doubt : std::uint8_t {
  none = 0,
  noise = 1,  // the interval holds 1
  few_rounds_before = 2,
  replaced = 3,             // by the next plan, too early
  straggler_found = 4,      // some rank became slow under the plan
  straggler_recovered = 5,  // or a slow rank recovered
  shared = 6,               // shared with a change whose cost is not known
};
// Returns a clause.
constexpr std::string_view to_string(Doubt doubt) {
  constexpr std::array<std::string_view, 7> kWords = {
      "",
      "step times vary more than the change",
      "too few rounds before the change",
      "the next plan came before enough rounds",
      "a rank or the job became slow meanwhile",
      "a slow rank or job recovered meanwhile",
      "the plan has another change of unknown cost"};
  return kWords[static_cast<std::size_t>(doubt)];
}
template <>
inline constexpr Doubt kLargestOf<Doubt> = Doubt::shared;

// Effect is the promise and the result of one change, or a finding about a slow rank.
struct Effect {
  Reason reason{};
  StepId step{};                        // of the decision, or the step with which the job began
  std::optional<std::uint64_t> plan{};  // the number of the plan with the change; empty = a finding
  std::uint32_t sharing = 1;            // changes that share the measurement, this one included
  MeasuredRounds before{};              // without rounds for findings and for the first plan
  MeasuredRounds after{};               // without rounds for findings and until the plan is applied
  RatioInterval measured{};             // 95 %: of step times, or of times per sample
  Verdict verdict = Verdict::none;
  Doubt doubt = Doubt::none;
  double seconds_saved = 0;  // of the job so far, by all sharing changes; negative = lost
  bool is_taken_back = false;

  static auto fields(auto& self) {
    return message("Effect", field(1, "reason", self.reason), field(2, "step", self.step),
                   field(3, "plan", self.plan), field(4, "sharing", self.sharing),
                   field(5, "before", self.before), field(6, "after", self.after),
                   field(7, "measured", self.measured), field(8, "verdict", self.verdict),
                   field(9, "doubt", self.doubt), field(10, "seconds_saved", self.seconds_saved),
                   field(11, "is_taken_back", self.is_taken_back));
  }
};
using EffectList = std::vector<Effect>;  // oldest first

// Returns the verdict for people, such as "did not help, taken back" or "not sure: step
// times vary more than the change". Empty if there is no verdict.
std::string verdict_text(const Effect& effect);

// An EffectList whose effects are shared: a round that adds an effect copies none of the others.
using SharedEffects = std::vector<std::shared_ptr<const Effect>>;
using SharedEffectList = std::shared_ptr<const SharedEffects>;

// The codec sees a shared effect as the effect.
template <>
struct ListOf<SharedEffectList> {
  using Element = Effect;
  static constexpr std::size_t kExactly = 0;
  static constexpr std::size_t kKept = 64;  // the newest effects
  static std::size_t most(const SharedEffectList&) { return kKept; }
  static std::size_t size(const SharedEffectList& list) { return list->size(); }
  static const Effect& at(const SharedEffectList& list, std::size_t place) {
    return *(*list)[place];
  }
  static void clear(SharedEffectList& list) { list = std::make_shared<const SharedEffects>(); }
  static bool put(SharedEffectList& list, std::size_t, Effect&& effect) {
    SharedEffects longer = *list;
    longer.push_back(std::make_shared<const Effect>(std::move(effect)));
    list = std::make_shared<const SharedEffects>(std::move(longer));
    return true;
  }
};

// KnobValues are the fields of a plan that a take-back may restore: the fields of a knob. The other
// fields do not count.
struct KnobValues {
  Plan plan;
};
auto list_fields(Is<KnobValues> auto& knobs) {
  return KnobsMessage<std::remove_reference_t<decltype((knobs.plan))>>{knobs.plan};
}

// RoundTime is one measured round.
struct RoundTime {
  RoundId round{};
  double seconds = 0;  // of a step
  double samples = 0;  // of a step; 0 if the loop decides
  double tokens_per_second = 0;
  std::uint64_t peak_bytes = 0;

  static auto fields(auto& self) {
    return message("RoundTime", field(1, "round", self.round), field(2, "seconds", self.seconds),
                   field(3, "samples", self.samples),
                   field(4, "tokens_per_second", self.tokens_per_second),
                   field(5, "peak_bytes", self.peak_bytes));
  }
};

// Trial is the measurement of the newest plan. Effects::recent has the rounds under the plan; up to
// 64 rounds count, from the fourth on. All changes of one plan share a trial. If the plan before
// was replaced before any of its rounds counted, its changes share the trial, too.
//
// Events with other causes are kept out of the measurement. If a rank was slow at the decision,
// rounds from before its slowness do not count. The trial ends when a rank or the job becomes slow
// or recovers under the plan, and with the next plan. A rank that becomes slow just as the plan
// takes effect counts as an effect of the plan.
struct Trial {
  std::uint64_t first_plan = 0;  // the first of the plans that share the trial
  std::uint64_t plan = 0;
  std::optional<RoundId> applied_in{};  // the first round under the plan
  std::vector<RoundTime> before;
  std::vector<AppliedChange> changes;
  KnobValues knobs_before;
  KnobValues knobs_after;

  static auto fields(auto& self) {
    return message("Trial", field(1, "first_plan", self.first_plan), field(2, "plan", self.plan),
                   field(3, "applied_in", self.applied_in), field(4, "before", self.before),
                   field(5, "changes", self.changes), field(6, "knobs_before", self.knobs_before),
                   field(7, "knobs_after", self.knobs_after));
  }
};

// Condemned has the changes of one plan that surely did not help. Decide takes back the changes of
// each Condemned in a plan of its own.
struct Condemned {
  std::uint64_t first_plan = 0;
  std::uint64_t plan = 0;
  std::vector<AppliedChange> changes;  // the changes that promised a shorter step
  KnobValues before;
  KnobValues after;
  RatioInterval measured{};

  static auto fields(auto& self) {
    return message("Condemned", field(1, "first_plan", self.first_plan),
                   field(2, "plan", self.plan), field(3, "changes", self.changes),
                   field(4, "before", self.before), field(5, "after", self.after),
                   field(6, "measured", self.measured));
  }
};

// Rest bars a policy from changing a knob for time after a take-back. The first rest lasts 512
// rounds, and each further one twice as long.
struct Rest {
  std::string policy;
  Knob knob = Knob::other;
  RoundId until{};
  std::uint32_t times = 0;
  bool told = false;

  static auto fields(auto& self) {
    return message("Rest", field(1, "policy", self.policy), field(2, "knob", self.knob),
                   field(3, "until", self.until), field(4, "times", self.times),
                   field(5, "told", self.told));
  }
};

// Effects is the state of all promises and measurements.
struct Effects {
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kKept = ListOf<SharedEffectList>::kKept;
  static constexpr std::size_t kRoundsBefore = 64;   // at most, directly before the switch
  static constexpr std::size_t kRoundsAfter = 64;    // at most, the first ones that count
  static constexpr std::size_t kSettlingRounds = 3;  // after a switch; not counted
  static constexpr std::uint32_t kRestRounds = 512;  // after the first take-back

  std::uint32_t incarnation = 0;
  SharedEffectList list = std::make_shared<const SharedEffects>();  // not null
  std::vector<PolicyScore> scores;                                  // ascending policies
  std::uint64_t applied = 0;  // the number of the plan that the ranks apply
  std::uint32_t rounds_of_plan = 0;
  double samples = 0;             // of a step under the applied plan
  std::vector<RoundTime> recent;  // the newest counted rounds, under equal circumstances
  std::vector<RankId> slow;       // ranks that were slow in the last round
  // The plan under which the whole job was slow in the last round.
  std::optional<std::uint64_t> slow_job_plan;
  std::optional<Trial> trial;
  std::vector<Condemned> condemned;
  std::vector<Rest> rests;
  std::vector<Account> accounts;

  static auto fields(auto& self) {
    return message("Effects", field(1, "incarnation", self.incarnation),
                   field(2, "list", self.list), field(3, "scores", self.scores),
                   field(4, "applied", self.applied),
                   field(5, "rounds_of_plan", self.rounds_of_plan),
                   field(6, "samples", self.samples), field(7, "recent", self.recent),
                   field(8, "slow", self.slow), field(9, "slow_job_plan", self.slow_job_plan),
                   field(10, "trial", self.trial), field(11, "condemned", self.condemned),
                   field(12, "rests", self.rests), field(13, "accounts", self.accounts));
  }
  // Returns whether the numbers can have come from the functions below.
  bool is_sane() const;
};

// Returns the effects for a start of the job. If this start has begun already, returns `before`.
// Else keeps only scores and rests of the earlier start, whose last round was `last_round`.
Effects effects_of_start(Effects before, std::uint32_t incarnation, const Plan& first_plan,
                         RoundId last_round);

// Adds the changes that the first plan begins with. A change with the same words is not added
// twice.
void note_start(Effects& effects, std::span<const Reason> reasons, const Plan& first_plan);

// Learns from a round: measures the plan in force, judges the plan when enough is known, and counts
// seconds. `newest` is the plan before the round's decision; `samples` are those of a step under
// it.
Effects learn_effects(Effects before, const StepSummary& summary, const Estimates& estimates,
                      const Plan& newest, std::uint64_t samples);

// The decision of a round.
struct RoundDecision {
  const StepSummary& summary;
  std::span<const Reason> reasons;
  const Plan& before;
  const Plan& after;  // equal number = no new plan
  std::vector<AppliedChange> changes;
};
// Adds the decision's effects. A new plan ends the present trial and starts the next one.
void note_decision(Effects& effects, RoundDecision decision);

// StepPace is the time of a step under the plan in force, over the counted rounds.
struct StepPace {
  double seconds = 0;  // median; 0 = not known
  double noise = 0;    // deviation of one step, as a ratio of the median; 0 = not known
};
StepPace step_pace(const Effects& effects);

// Returns the rest that keeps the policy from promising a shorter step by `knob` now, or null. The
// rest lives until the next change of `effects`.
Rest* find_rest(Effects& effects, std::string_view policy, Knob knob, RoundId now);

// Records that the oldest condemned changes were taken back in round `now`. The policies behind the
// changes rest from these knobs. Returns the first round in which such a change may be tried again.
// REQUIRES: `condemned` is not empty.
RoundId note_taken_back(Effects& effects, RoundId now);

}  // namespace cox
