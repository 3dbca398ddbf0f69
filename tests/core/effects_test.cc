#include "coordinator/core/effects.h"

#include <vector>

#include <doctest/doctest.h>

namespace cox {
namespace {

constexpr std::size_t kSettled = EffectLog::kSettlingRounds;

StepSummary round_of(std::uint64_t step, double seconds, std::uint64_t applied,
                     std::uint64_t peak_bytes = 1000) {
  StepSummary summary;
  summary.step = StepId(step);
  summary.rounds = 1;
  summary.wall_seconds.count = 2;
  summary.wall_seconds.median = seconds;
  summary.tokens = 100;
  summary.memory_peak_bytes = peak_bytes;
  summary.plan_applied_max = applied;
  return summary;
}

Plan plan_of(std::uint64_t number) {
  Plan plan;
  plan.id.number = number;
  return plan;
}

Reason reason_of(ReasonCode code, Outcome outcome) {
  Reason reason;
  reason.code = code;
  reason.outcome = outcome;
  return reason;
}

const Reason kChange = reason_of(ReasonCode::shares_changed, Outcome::changed);

// `rounds` of them, one step each.
void run(EffectLog& log, std::size_t rounds, double seconds, std::uint64_t plan,
         std::uint64_t peak_bytes = 1000) {
  for (std::size_t i = 0; i < rounds; ++i) {
    log.add(round_of(i, seconds, plan, peak_bytes), {}, plan_of(plan));
  }
}

TEST_SUITE("core.effects") {
  TEST_CASE("a change has the median of the rounds before it and of those under its plan") {
    EffectLog log;
    run(log, 10, 1.0, 0);
    run(log, 7, 2.0, 0);
    log.add(round_of(40, 2.0, 0), {&kChange, 1}, plan_of(1));
    run(log, 3, 2.0, 0, 5000);  // the plan is on its way
    REQUIRE(log.list()->size() == 1);
    CHECK(log.list()->front()->after.rounds == 0);

    run(log, kSettled, 9.0, 1, 9000);  // these do not count
    run(log, EffectLog::kRoundsAfter, 0.5, 1, 2000);
    run(log, 30, 7.0, 1, 7000);  // nor do these, long after
    const Effect& effect = *log.list()->front();
    CHECK(effect.step == StepId(40));
    CHECK(effect.plan == 1);
    CHECK(effect.before.rounds == EffectLog::kRoundsBefore);
    CHECK(effect.before.step_seconds == 2.0);
    CHECK(effect.before.tokens_per_second == 50.0);
    CHECK(effect.before.peak_bytes == 1000);
    CHECK(effect.after.rounds == EffectLog::kRoundsAfter);
    CHECK(effect.after.step_seconds == 0.5);
    CHECK(effect.after.tokens_per_second == 200.0);
    CHECK(effect.after.peak_bytes == 2000);
  }

  TEST_CASE("changes of one plan share its rounds, and the next plan ends them") {
    EffectLog log;
    run(log, 10, 1.0, 0);
    const std::vector<Reason> two = {kChange, reason_of(ReasonCode::memory_room, Outcome::clamped)};
    log.add(round_of(10, 1.0, 0), two, plan_of(1));
    run(log, kSettled + 5, 2.0, 1);
    log.add(round_of(20, 2.0, 1), {&kChange, 1}, plan_of(2));
    run(log, kSettled + 5, 4.0, 2);
    const SharedEffects& effects = *log.list();
    REQUIRE(effects.size() == 3);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(effects[i]->after.rounds == 6);
      CHECK(effects[i]->after.step_seconds == 2.0);
    }
    CHECK(effects[2]->before.rounds == 6);
    CHECK(effects[2]->before.step_seconds == 2.0);
    CHECK(effects[2]->after.step_seconds == 4.0);
  }

  TEST_CASE("a plan that is replaced at once is measured together with the next one") {
    EffectLog log;
    run(log, 10, 1.0, 0);
    log.add(round_of(10, 1.0, 0), {&kChange, 1}, plan_of(1));
    run(log, 2, 3.0, 1);
    log.add(round_of(13, 3.0, 1), {&kChange, 1}, plan_of(2));
    run(log, kSettled + 5, 0.5, 2);
    REQUIRE(log.list()->size() == 2);
    for (const auto& effect : *log.list()) {
      CHECK(effect->before.step_seconds == 1.0);
      CHECK(effect->after.rounds == 5);
      CHECK(effect->after.step_seconds == 0.5);
    }
  }

  TEST_CASE("what the job began with has rounds after it only") {
    EffectLog log(7);
    log.begin({&kChange, 1}, StepId(100));
    run(log, kSettled + 4, 1.5, 7);
    const Effect& effect = *log.list()->front();
    CHECK(effect.step == StepId(100));
    CHECK(effect.plan == 7);
    CHECK(effect.before.rounds == 0);
    CHECK(effect.after.rounds == 4);
    CHECK(effect.after.step_seconds == 1.5);
  }

  TEST_CASE("a slow rank is kept without measurements; what changed nothing is not kept") {
    EffectLog log;
    run(log, 10, 1.0, 0);
    const std::vector<Reason> said = {reason_of(ReasonCode::straggler_found, Outcome::reported),
                                      reason_of(ReasonCode::shares_changed, Outcome::observed),
                                      reason_of(ReasonCode::shares_changed, Outcome::vetoed),
                                      reason_of(ReasonCode::memory_fits, Outcome::unchanged)};
    log.add(round_of(10, 1.0, 0), said, plan_of(0));
    run(log, 30, 1.0, 0);
    REQUIRE(log.list()->size() == 1);
    const Effect& found = *log.list()->front();
    CHECK(found.reason.code == ReasonCode::straggler_found);
    CHECK_FALSE(found.plan.has_value());
    CHECK(found.before.rounds == 0);
    CHECK(found.after.rounds == 0);
  }

  TEST_CASE("rounds without a time do not count, and only the newest effects are kept") {
    EffectLog log;
    StepSummary silent = round_of(0, 0, 0);
    silent.wall_seconds = {};
    for (int i = 0; i < 10; ++i) log.add(silent, {}, plan_of(0));
    log.add(silent, {&kChange, 1}, plan_of(1));
    CHECK(log.list()->front()->before.rounds == 0);
    for (std::uint64_t i = 0; i < EffectLog::kKept; ++i) {
      log.add(round_of(i, 1.0, 0), {&kChange, 1}, plan_of(1));
    }
    CHECK(log.list()->size() == EffectLog::kKept);
    CHECK(log.list()->front()->step == StepId(0));
    CHECK(log.list()->front()->before.rounds == 0);
  }

  TEST_CASE("a list that was handed out does not change") {
    EffectLog log;
    log.begin({&kChange, 1}, StepId(0));
    const auto before = log.list();
    run(log, kSettled + 1, 1.0, 0);
    CHECK(before->front()->after.rounds == 0);
    CHECK(log.list()->front()->after.rounds == 1);
  }
}

}  // namespace
}  // namespace cox
