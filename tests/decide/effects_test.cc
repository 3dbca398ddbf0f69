#include "coordinator/decide/effects.h"

#include <span>
#include <string>
#include <vector>

#include "coordinator/decide/policy.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

constexpr std::size_t kSettled = Effects::kSettlingRounds;

Plan plan_of(std::uint64_t number) {
  Plan plan;
  plan.id.number = number;
  plan.shares = {static_cast<std::uint32_t>(number + 1), 1};
  return plan;
}

Reason change_of(ReasonCode code, double promised) {
  Reason reason;
  reason.policy = PolicyKind::shares;
  reason.code = code;
  reason.outcome = Outcome::changed;
  if (promised > 0) reason.forecast = forecast_of_time(promised, 0.01);
  return reason;
}

const Reason kPromise = change_of(ReasonCode::shares_changed, 0.8);
const Reason kNecessity = change_of(ReasonCode::shares_limited, 0);

// A job with given round times. The tests decide and apply plans by hand.
struct Job {
  Effects effects;
  Estimates estimates;
  std::uint64_t round = 0;
  std::uint64_t plan = 0;
  std::uint64_t samples = 0;
  std::uint64_t peak_bytes = 1000;
  testing::Random random{1};

  explicit Job(std::uint64_t first_plan = 0)
      : effects(effects_of_start({}, 1, plan_of(first_plan), RoundId(0))), plan(first_plan) {}

  StepSummary summary(double seconds) {
    StepSummary summary;
    summary.round = RoundId(++round);
    summary.step = StepId(round);
    summary.reporting = 2;
    summary.rounds = 1;
    summary.wall_seconds.count = 2;
    summary.wall_seconds.median = seconds * (1 + 0.002 * random.normal());
    summary.tokens = 100;
    summary.memory_peak_bytes = peak_bytes;
    summary.plan_applied_max = plan;
    return summary;
  }
  void run(std::size_t rounds, double seconds) {
    for (std::size_t i = 0; i < rounds; ++i) {
      effects =
          learn_effects(std::move(effects), summary(seconds), estimates, plan_of(plan), samples);
    }
  }
  // Decides plan number plan + 1 in the last round. The plan applies at once.
  void decide(const std::vector<Reason>& reasons, double seconds = 1) {
    const StepSummary last = summary(seconds);
    effects = learn_effects(std::move(effects), last, estimates, plan_of(plan), samples);
    std::vector<AppliedChange> changes;
    for (const Reason& reason : reasons) {
      AppliedChange change{"shares", PolicyKind::shares, Knob::shares};
      change.promised_ratio = reason.forecast.step_ratio;
      change.is_for_time = reason.forecast.promises_time();
      changes.push_back(change);
    }
    note_decision(effects, {last, reasons, plan_of(plan), plan_of(plan + 1), changes});
    ++plan;
  }
  void become_slow(std::int32_t rank, std::uint64_t since) {
    SlowRank slow;
    slow.rank = RankId(rank);
    slow.since = RoundId(since);
    estimates.slowness.slow.push_back(slow);
  }
  const Effect& newest() const { return *effects.list->back(); }
};

TEST_SUITE("decide.effects") {
  TEST_CASE(
      "the knobs of a plan are kept by the numbers of their fields in the order of saved states") {
    Plan plan;
    plan.precision = {Precision::bf16, Precision::fp32};
    plan.profiles = {{MemoryAction::keep, MemoryAction::recompute}};
    plan.rank_profile = {ProfileId(0), ProfileId(0), ProfileId(0)};
    plan.shares = {300, 1, 2};
    plan.scaler.growth_interval = 7;
    plan.hold_until = RoundId(9);
    plan.rollback = {1, RoundId(3)};
    plan.step_samples = 128;
    ByteWriter out;
    write_message(out, KnobValues{plan});
    const std::string bytes(out.text());
    CHECK(bytes == std::string("\x0A\2\1\0"
                               "\x12\4\x0A\2\0\1"
                               "\x1A\3\0\0\0"
                               "\x22\4\xAC\2\1\2"
                               "\x48\x80\1",
                               24));

    KnobValues read_back;
    CHECK(read_message(bytes, read_back));
    Plan expected = plan;
    expected.scaler = {};
    expected.hold_until = {};
    expected.rollback = {};
    CHECK(read_back.plan == expected);
    CHECK(Effects::kVersion == 1);
  }

  TEST_CASE("a change has the rounds before it, those under its plan, and the ratio of both") {
    Job job;
    job.run(100, 2.0);
    job.decide({kPromise}, 2.0);
    CHECK(job.newest().verdict == Verdict::measuring);
    CHECK(job.newest().before.rounds == Effects::kRoundsBefore);
    CHECK(job.newest().after.rounds == 0);
    job.peak_bytes = 9000;
    job.run(kSettled, 9.0);  // these rounds do not count
    job.peak_bytes = 2000;
    job.run(Effects::kRoundsAfter, 1.0);
    job.peak_bytes = 7000;
    job.run(30, 7.0);  // nor do these, long after
    const Effect& effect = job.newest();
    CHECK(effect.plan == 1);
    CHECK(effect.step == StepId(101));
    CHECK(effect.before.step_seconds == doctest::Approx(2.0).epsilon(0.01));
    CHECK(effect.before.tokens_per_second == doctest::Approx(50.0).epsilon(0.01));
    CHECK(effect.before.peak_bytes == 1000);
    CHECK(effect.after.rounds == Effects::kRoundsAfter);
    CHECK(effect.after.step_seconds == doctest::Approx(1.0).epsilon(0.01));
    CHECK(effect.after.peak_bytes == 2000);
    CHECK(effect.measured.low < 0.5);
    CHECK(effect.measured.high > 0.5);
    CHECK(effect.measured.high < 0.505);
    CHECK(effect.verdict == Verdict::helped);
  }

  TEST_CASE("what was promised and came true is gained in seconds, for its policy") {
    Job job;
    job.run(70, 2.0);
    job.decide({kPromise}, 2.0);
    job.run(kSettled + Effects::kRoundsAfter, 1.0);
    REQUIRE(job.effects.scores.size() == 1);
    const double at_verdict = job.effects.scores[0].seconds_gained;
    CHECK(at_verdict == doctest::Approx(65).epsilon(0.03));  // a second a step
    job.run(100, 1.0);
    const PolicyScore& score = job.effects.scores[0];
    CHECK(score.policy == PolicyKind::shares);
    CHECK(score.helped == 1);
    CHECK(score.seconds_gained == doctest::Approx(at_verdict + 100).epsilon(0.02));
    CHECK(score.seconds_promised == doctest::Approx(0.4 * score.seconds_gained).epsilon(0.02));
    CHECK(score.seconds_lost == 0);
    CHECK(job.newest().seconds_saved > 130);
  }

  TEST_CASE("a promise that surely was not kept is condemned early, and rests longer each time") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 16, 1.3);
    CHECK(job.newest().verdict == Verdict::did_not_help);
    REQUIRE(job.effects.condemned.size() == 1);
    CHECK(job.effects.condemned[0].plan == 1);
    CHECK(job.effects.scores[0].seconds_lost > 0);
    const RoundId now(job.round);
    CHECK(note_taken_back(job.effects, now).value() == now.value() + Effects::kRestRounds);
    CHECK(job.newest().is_taken_back);
    CHECK(find_rest(job.effects, "shares", Knob::shares, now) != nullptr);
    CHECK(find_rest(job.effects, "shares", Knob::batch, now) == nullptr);
    CHECK(find_rest(job.effects, "memory", Knob::shares, now) == nullptr);
    const RoundId later(now.value() + Effects::kRestRounds);
    CHECK(find_rest(job.effects, "shares", Knob::shares, later) == nullptr);
    job.round = later.value();
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 16, 1.3);
    REQUIRE(job.effects.condemned.size() == 1);
    const RoundId again(job.round);
    CHECK(note_taken_back(job.effects, again).value() == again.value() + 2 * Effects::kRestRounds);
  }

  TEST_CASE("a necessity is measured and never condemned") {
    Job job;
    job.run(70, 1.0);
    job.decide({kNecessity});
    job.run(kSettled + Effects::kRoundsAfter, 1.5);
    CHECK(job.newest().verdict == Verdict::none);
    CHECK(job.newest().measured.low > 1.4);
    CHECK(job.effects.condemned.empty());
  }

  TEST_CASE("a promise beside a change of unknown cost is not sure") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise, kNecessity});
    CHECK(job.newest().sharing == 2);
    job.run(kSettled + Effects::kRoundsAfter, 1.5);
    CHECK(job.newest().verdict == Verdict::not_sure);
    CHECK(job.newest().doubt == Doubt::shared);
    CHECK(job.effects.condemned.empty());
  }

  TEST_CASE("the next plan ends a trial: with enough rounds it is judged, with few not") {
    for (const std::size_t rounds : {4, 40}) {
      CAPTURE(rounds);
      Job job;
      job.run(70, 1.0);
      job.decide({kPromise});
      job.run(kSettled + rounds, 0.8);
      job.decide({kPromise}, 0.8);
      const Effect& first = *job.effects.list->front();
      CHECK(first.verdict == (rounds == 40 ? Verdict::helped : Verdict::not_sure));
      CHECK(first.doubt == (rounds == 40 ? Doubt::none : Doubt::replaced));
    }
  }

  TEST_CASE("a plan that is replaced at once is measured together with the next one") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(2, 3.0);
    job.decide({kPromise}, 3.0);
    job.run(kSettled + Effects::kRoundsAfter, 0.5);
    REQUIRE(job.effects.list->size() == 2);
    for (const auto& effect : *job.effects.list) {
      CHECK(effect->sharing == 2);
      CHECK(effect->measured.ratio == doctest::Approx(0.5).epsilon(0.01));
      CHECK(effect->verdict == Verdict::helped);
    }
  }

  TEST_CASE("where the batch changes, times are compared by sample") {
    Job job;
    job.samples = 100;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.samples = 200;
    job.run(kSettled + Effects::kRoundsAfter, 1.6);
    CHECK(job.newest().measured.ratio == doctest::Approx(0.8).epsilon(0.01));
    CHECK(job.newest().verdict == Verdict::helped);
  }

  TEST_CASE("a rank that becomes slow under the plan ends the trial; one before it is taken out") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 20, 0.8);
    const std::uint64_t onset = job.round + 1;
    job.run(10, 1.6);
    job.become_slow(1, onset);
    job.run(1, 1.6);
    CHECK(job.newest().verdict == Verdict::helped);  // judged by the 20 rounds before the slowdown
    CHECK(job.newest().after.rounds == 20);
    CHECK(job.newest().measured.ratio == doctest::Approx(0.8).epsilon(0.01));

    Job late;  // the same rank was slow before the decision, but is found only under the plan
    late.run(70, 1.0);
    const std::uint64_t before = late.round + 1;
    late.run(30, 2.0);
    late.decide({kPromise}, 2.0);
    late.run(kSettled + 8, 1.5);
    late.become_slow(1, before);
    late.run(Effects::kRoundsAfter, 1.5);
    CHECK(late.newest().measured.ratio == doctest::Approx(0.75).epsilon(0.01));
  }

  TEST_CASE("a rank that becomes slow as the plan sets in is the plan's doing") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(8, 1.5);
    job.become_slow(1, job.round - 4);
    job.run(Effects::kRoundsAfter, 1.5);
    CHECK(job.newest().verdict == Verdict::did_not_help);
  }

  TEST_CASE("a rank that recovers under the plan makes the verdict not sure") {
    Job job;
    job.become_slow(0, 1);
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 20, 0.8);
    job.estimates.slowness.slow.clear();
    job.run(1, 0.6);
    CHECK(job.newest().verdict == Verdict::not_sure);
    CHECK(job.newest().doubt == Doubt::straggler_recovered);
    CHECK(job.newest().seconds_saved == 0);
  }

  TEST_CASE("a job that gets slower by itself under the plan ends the trial there") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 30, 0.8);
    SlowJob slow;
    slow.since = RoundId(job.round + 1);
    job.run(20, 1.2);
    job.estimates.slowness.pace.plan = job.plan;
    job.estimates.slowness.pace.slow = slow;
    job.run(1, 1.2);
    CHECK(job.newest().verdict == Verdict::helped);
    CHECK(job.newest().after.rounds == 30);
  }

  TEST_CASE("what the job began with has rounds after it only, and the same words count once") {
    Job job(7);
    for (int i = 0; i < 2; ++i) note_start(job.effects, {&kPromise, 1}, plan_of(7));
    REQUIRE(job.effects.list->size() == 1);
    job.run(kSettled + 4, 1.5);
    const Effect& effect = job.newest();
    CHECK(effect.step == StepId(1));
    CHECK(effect.plan == 7);
    CHECK(effect.before.rounds == 0);
    CHECK(effect.after.rounds == 4);
    CHECK_FALSE(effect.measured.is_known());
    CHECK(effect.verdict == Verdict::none);
  }

  TEST_CASE("a slow rank is kept without measurements; what changed nothing is not kept") {
    Job job;
    job.run(10, 1.0);
    Reason found = kPromise;
    found.code = ReasonCode::straggler_found;
    found.outcome = Outcome::reported;
    Reason observed = kPromise;
    observed.outcome = Outcome::observed;
    const StepSummary last = job.summary(1.0);
    const std::vector<Reason> said = {found, observed};
    note_decision(job.effects, {last, said, plan_of(0), plan_of(0), {}});
    REQUIRE(job.effects.list->size() == 1);
    CHECK_FALSE(job.newest().plan.has_value());
    CHECK(job.newest().after.rounds == 0);
  }

  TEST_CASE("only the newest effects are kept, and a list that was handed out does not change") {
    Job job;
    job.run(20, 1.0);
    job.decide({kPromise});
    const auto before = job.effects.list;
    for (std::size_t i = 0; i < Effects::kKept + 5; ++i) job.decide({kPromise});
    CHECK(job.effects.list->size() == Effects::kKept);
    CHECK(before->size() == 1);
    CHECK(before->front()->sharing == 1);
  }

  TEST_CASE("another start keeps scores and rests, and forgets what it can no longer compare") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 16, 1.3);
    note_taken_back(job.effects, RoundId(job.round));
    const Effects next = effects_of_start(job.effects, 2, plan_of(0), RoundId(job.round + 12));
    CHECK(next.list->empty());
    CHECK(next.recent.empty());
    CHECK(next.scores.size() == 1);
    REQUIRE(next.rests.size() == 1);
    CHECK(next.rests[0].until == RoundId(Effects::kRestRounds - 12));
  }

  TEST_CASE("the state comes back from its bytes; damaged bytes are a sane state or a fresh one") {
    Job job;
    job.run(70, 1.0);
    job.decide({kPromise});
    job.run(kSettled + 16, 1.3);
    job.decide({kPromise});
    const std::string bytes = PolicyState::of(job.effects).bytes();
    const Result<Effects> read = decode_state<Effects>(bytes);
    REQUIRE(read.ok());
    CHECK(encode_state(*read) == bytes);
    testing::Random random(5);
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = bytes;
      const std::size_t at = random.below(damaged.size());
      damaged[at] = static_cast<char>(random.bits());
      if (i % 3 == 0) damaged.resize(at);
      Job other;
      other.effects = PolicyState::from_bytes(damaged).take_or_fresh<Effects>();
      CHECK(other.effects.is_sane());
      other.round = job.round;
      other.run(3, 1.0);
      other.decide({kPromise});
      other.run(70, 1.0);
    }
  }
}

}  // namespace
}  // namespace cox
