// Effects: what decisions promised and what came of them, and which ones are taken back. A part of
// the flow of a round, on both sides of the policies:
//
//   StepSummary, Estimates -> learn_effects -> policies, Draft -> note_decision -> next round
//                                    \-> take-back (decide.cc)      \-> page, API, closing table
//
// Each plan is a trial. The last 64 rounds before it sets in are compared with up to 64 rounds
// under it, the first 3 left out, as a ratio of step times with a 95 % interval (paired_ratio.h);
// of times per sample where the batch changed. What else happened is taken out or makes the verdict
// "not sure": rounds before a rank became slow do not count when it was so while the decision was
// made; a rank, or the job as a whole, that becomes slow or recovers under the plan ends the trial,
// and so does the next plan. A rank that becomes slow as the plan sets in counts as the plan's
// doing. Changes of one plan share a trial, and so do those of a plan that was replaced before any
// round under it counted.
//
// A change that promised a shorter step (Forecast::promises_time) helped when the interval lies
// below 1, and did not help when the 99 % interval lies above 1, or the 99.9 % interval does after
// 16 or 32 rounds. What did not help is condemned: Decide takes it back in a plan of its own, and
// the same policy may not promise a shorter step on that knob for 512 rounds, twice as long each
// time. Everything else is never condemned: necessities do not promise time.
//
// Decide keeps the value as the state named "effects", journalled and saved like those of policies.
// Pure functions; the same rounds give the same effects.
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

// Some rounds in a row under one plan.
struct MeasuredRounds {
  std::uint32_t rounds = 0;
  double step_seconds = 0;       // median of the wall time of a step
  double tokens_per_second = 0;  // over all ranks, at that time; 0 where no tokens are counted
  std::uint64_t peak_bytes = 0;  // highest memory peak of a rank; 0 where it is not known

  static auto fields(auto& self) {
    return message("MeasuredRounds", field(1, "rounds", self.rounds),
                   field(2, "step_seconds", self.step_seconds),
                   field(3, "tokens_per_second", self.tokens_per_second),
                   field(4, "peak_bytes", self.peak_bytes));
  }
};

// Values are kept in states: never renumber.
enum class Verdict : std::uint8_t {
  none = 0,       // nobody promised a shorter step
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

// Why a verdict is "not sure".
enum class Doubt : std::uint8_t {
  none = 0,
  noise = 1,  // the interval holds 1
  few_rounds_before = 2,
  replaced = 3,             // by the next plan, too early
  straggler_found = 4,      // some rank became slow under the plan
  straggler_recovered = 5,  // or well again
  shared = 6,               // with a change whose cost is not known
};
// As a clause.
constexpr std::string_view to_string(Doubt doubt) {
  constexpr std::array<std::string_view, 7> kWords = {
      "",
      "steps vary more than that",
      "too few rounds before it",
      "the next plan came too early",
      "a rank or the job became slow meanwhile",
      "a slow rank or job recovered meanwhile",
      "another change of the plan has a cost that is not known"};
  return kWords[static_cast<std::size_t>(doubt)];
}
template <>
inline constexpr Doubt kLargestOf<Doubt> = Doubt::shared;

struct Effect {
  Reason reason{};
  StepId step{};                        // at which it was decided, or with which the job began
  std::optional<std::uint64_t> plan{};  // the number of the plan with the change; empty = a finding
  std::uint32_t sharing = 1;            // changes that share the measurement, this one included
  MeasuredRounds before{};              // no rounds for findings and for what the job began with
  MeasuredRounds after{};               // no rounds for findings and while the plan is not applied
  RatioInterval measured{};             // 95 %: of step times, or of times per sample
  Verdict verdict = Verdict::none;
  Doubt doubt = Doubt::none;
  double seconds_saved = 0;  // of the job so far, by all that share; negative = lost
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

// Returns the verdict for people: "did not help, taken back", "not sure: steps vary more than
// that"; empty where there is none.
std::string verdict_text(const Effect& effect);

// The same, shared: a round that adds one copies none.
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

// KnobValues are the fields of a plan that a take-back may restore: those of a knob. The other
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
  double samples = 0;  // of a step; 0 where the loop decides that itself
  double tokens_per_second = 0;
  std::uint64_t peak_bytes = 0;

  static auto fields(auto& self) {
    return message("RoundTime", field(1, "round", self.round), field(2, "seconds", self.seconds),
                   field(3, "samples", self.samples),
                   field(4, "tokens_per_second", self.tokens_per_second),
                   field(5, "peak_bytes", self.peak_bytes));
  }
};

// Trial is the plan that is being measured; Effects::recent has the rounds under it.
struct Trial {
  std::uint64_t first_plan = 0;  // the changes of these plans share it
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

// Condemned are the changes of a plan that surely did not help, until they are taken back.
struct Condemned {
  std::uint64_t first_plan = 0;
  std::uint64_t plan = 0;
  std::vector<AppliedChange> changes;  // those that promised a shorter step
  KnobValues before;
  KnobValues after;
  RatioInterval measured{};
  bool told = false;  // that it stays for now

  static auto fields(auto& self) {
    return message("Condemned", field(1, "first_plan", self.first_plan),
                   field(2, "plan", self.plan), field(3, "changes", self.changes),
                   field(4, "before", self.before), field(5, "after", self.after),
                   field(6, "measured", self.measured), field(7, "told", self.told));
  }
};

// Rest keeps a policy from promising a shorter step on a knob.
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

struct Effects {
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kKept = ListOf<SharedEffectList>::kKept;
  static constexpr std::size_t kRoundsBefore = 64;   // at most, directly before the switch
  static constexpr std::size_t kRoundsAfter = 64;    // at most, the first ones that count
  static constexpr std::size_t kSettlingRounds = 3;  // after a switch; they do not count
  static constexpr std::uint32_t kRestRounds = 512;  // after the first take-back

  std::uint32_t incarnation = 0;
  SharedEffectList list = std::make_shared<const SharedEffects>();  // not null
  std::vector<PolicyScore> scores;                                  // ascending policies
  std::uint64_t applied = 0;  // the number of the plan that the ranks apply
  std::uint32_t rounds_of_plan = 0;
  double samples = 0;             // of a step under it
  std::vector<RoundTime> recent;  // the newest rounds that count, under the same circumstances
  std::vector<RankId> slow;       // ranks that were slow in the last round
  // The number of the plan under which the whole job was slower than it was, in the last round.
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

// Returns the effects with which a start of the job begins: the same, where this start has begun
// already; else scores and rests of the one before, whose last round was `last_round`.
Effects effects_of_start(Effects before, std::uint32_t incarnation, const Plan& first_plan,
                         RoundId last_round);

// Adds the changes that the first plan begins with; those with the same words are not added twice.
void note_start(Effects& effects, std::span<const Reason> reasons, const Plan& first_plan);

// Learns from a round: measures the plan in force, judges it when enough is known, and counts
// seconds. `newest` is the plan before the round's decision, `samples` those of a step under it.
Effects learn_effects(Effects before, const StepSummary& summary, const Estimates& estimates,
                      const Plan& newest, std::uint64_t samples);

// What was decided in a round.
struct RoundDecision {
  const StepSummary& summary;
  std::span<const Reason> reasons;
  const Plan& before;
  const Plan& after;  // the same number as before = no new plan
  std::vector<AppliedChange> changes;
};
void note_decision(Effects& effects, RoundDecision decision);

// StepPace is the time of a step under the plan in force, over the rounds that count.
struct StepPace {
  double seconds = 0;  // median; 0 = not known
  double noise = 0;    // deviation of one step, as a part of it; 0 = not known
};
StepPace step_pace(const Effects& effects);

// Returns the rest that keeps the policy from promising a shorter step by `knob` now, or null. It
// lives until the next change of `effects`.
Rest* find_rest(Effects& effects, std::string_view policy, Knob knob, RoundId now);

// The changes that are condemned first were taken back in round `now`: their policies rest from
// these knobs. Returns the first round in which the like may be tried again. REQUIRES: some are.
RoundId note_taken_back(Effects& effects, RoundId now);

}  // namespace cox
