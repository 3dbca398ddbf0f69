#include "sdk/src/session/run_tally.h"

#include <vector>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

struct Round {
  StepSignals signals;
  Decision decision;
  Plan plan;
  JobFacts job;
  ControlCounters counters;

  void report(std::int32_t rank, Phase phase, float seconds) {
    RankSignal signal;
    signal.rank = RankId(rank);
    signal.phase_seconds[static_cast<std::size_t>(phase)] = seconds;
    signals.reports.push_back(signal);
  }
  StepRecord record() const { return {signals, decision, plan, job, counters}; }
};

struct CountingSink final : StepSink {
  int records = 0;
  void record(const StepRecord&) override { ++records; }
};

}  // namespace

TEST_SUITE("run tally") {
  TEST_CASE("names the rank that worked longest over the whole run and where it lost most") {
    RunTally tally(3, nullptr);
    for (int i = 0; i < 4; ++i) {
      Round round;
      round.report(0, Phase::forward, 1);
      round.report(1, Phase::forward, 1.1f);
      round.report(1, Phase::data, 0.9f);
      round.report(2, Phase::forward, 1.5f);
      round.counters.rounds = static_cast<std::uint64_t>(i) + 1;
      round.counters.plans_published = 2;
      tally.record(round.record());
    }
    const SessionReport report = tally.report();
    CHECK(report.rounds == 4);
    CHECK(report.plans == 2);
    CHECK(report.slowest_rank == 1);
    CHECK(report.slowest_phase == Phase::data);
    CHECK(report.slowdown_ratio == doctest::Approx(2.0));
  }

  TEST_CASE("time spent waiting for others makes nobody slow") {
    RunTally tally(2, nullptr);
    Round round;
    round.report(0, Phase::communication, 9);
    round.report(0, Phase::backward, 1);
    round.report(1, Phase::backward, 2);
    tally.record(round.record());
    CHECK(tally.report().slowest_rank == 1);
    CHECK(tally.report().slowest_phase == Phase::backward);
  }

  TEST_CASE("a single rank is its own slowest, in the phase that took longest") {
    RunTally tally(1, nullptr);
    Round round;
    round.report(0, Phase::forward, 1);
    round.report(0, Phase::backward, 3);
    tally.record(round.record());
    CHECK(tally.report().slowdown_ratio == 1);
    CHECK(tally.report().slowest_phase == Phase::backward);
  }

  TEST_CASE("says what the newest plan of memory saves on one rank, and the time that it adds") {
    RunTally tally(2, nullptr);
    Round round;
    round.job.world_size = 2;
    round.job.blocks = {"a"};
    const std::vector<MemoryAction> keep = {MemoryAction::keep};
    const std::vector<MemoryAction> recompute = {MemoryAction::recompute};
    round.job.memory.models = {{{{100, 250, recompute}, {180, 0, keep}}, 50, 1000, {80}}};
    round.plan.profiles = {keep, recompute};
    round.plan.rank_profile = {ProfileId(0), ProfileId(0)};
    tally.record(round.record());
    CHECK(tally.report().memory_planned);
    CHECK(tally.report().memory_peak_bytes == 180);
    CHECK(tally.report().memory_saved_bytes == 0);
    CHECK(tally.report().memory_added_ratio == 0);
    round.plan.id.number = 1;
    round.plan.rank_profile = {ProfileId(0), ProfileId(1)};
    tally.record(round.record());
    CHECK(tally.report().memory_peak_bytes == 180);
    CHECK(tally.report().memory_saved_bytes == 80);
    CHECK(tally.report().memory_added_ratio == doctest::Approx(0.25));
  }

  TEST_CASE("a price makes a cost of the time since the start, and of the time a plan adds") {
    RunTally tally(2, nullptr, {UnixTime{1000}, 3.0});
    Round round;
    round.job.world_size = 2;
    round.job.blocks = {"a"};
    const std::vector<MemoryAction> recompute = {MemoryAction::recompute};
    round.job.memory.models = {{{{100, 250, recompute}}, 50, 1000, {80}}};
    round.plan.profiles = {recompute};
    round.signals.now = UnixTime{1000 + 1800};
    tally.record(round.record());
    CHECK(tally.report().cost == doctest::Approx(3.0));  // two devices for half an hour
    CHECK(tally.report().memory_cost_hourly == doctest::Approx(6.0 * 0.2));
    round.signals.now = UnixTime{10};  // the clock went back
    tally.record(round.record());
    CHECK(tally.report().cost == doctest::Approx(3.0));
  }

  TEST_CASE("nothing recorded is nothing reported") {
    const SessionReport report = RunTally(4, nullptr).report();
    CHECK(report.rounds == 0);
    CHECK(report.slowdown_ratio == 1);
    CHECK(report.last_reason.empty());
    CHECK_FALSE(report.memory_planned);
    CHECK(report.cost == 0);
  }

  TEST_CASE("counts reasons, keeps the last, and hands every record on") {
    CountingSink next;
    RunTally tally(1, &next);
    for (const char* text : {"first", "second"}) {
      Round round;
      Reason reason;
      reason.text = text;
      round.decision.reasons = {reason};
      tally.record(round.record());
    }
    CHECK(tally.report().decisions == 2);
    CHECK(tally.report().last_reason == "second");
    CHECK(next.records == 2);
  }
}
