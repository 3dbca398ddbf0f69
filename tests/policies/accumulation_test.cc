// Policy `accumulation`, single decisions: the batch for a given cost of synchronising.
#include "coordinator/policies/accumulation/accumulation.h"

#include <string>

#include "tests/policies/accumulation_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::accumulation_job;
using test::SimulatedAccumulation;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE("policies.accumulation") {
  TEST_CASE("the anchor that meets the target follows from one measurement") {
    struct {
      double sync, optimizer, target;
      int anchor;                             // micro-batches of each rank: 10 ms each
    } const table[] = {{0.0005, 0, 0.1, 1},   // 5 %
                       {0.001, 0, 0.1, 1},    // 9 %
                       {0.00115, 0, 0.1, 1},  // 10.3 %: not worth a change
                       {0.002, 0, 0.1, 2},    // 17 % -> 9 %
                       {0.01, 0, 0.1, 10},  // 50 %; 9 gives exactly 10 %, without the margin of 5 %
                       {0.01, 0, 0.2, 5},   // 4 would give exactly 20 %
                       {0.01, 0.02, 0.1, 8},  // the optimizer's 20 ms count as work
                       {0.001, 0.5, 0.1, 1},  // such an expensive optimizer hides the cost
                       {0.05, 0, 0.1, 48},    // 45 would give exactly 10 %
                       {1, 0, 0.1, 64}};      // the cap
    for (const auto& row : table) {
      CAPTURE(row.sync);
      CAPTURE(row.optimizer);
      SimulatedAccumulation run("accumulation.target_ratio = " + std::to_string(row.target));
      run.sync_seconds = row.sync;
      run.optimizer_seconds = row.optimizer;
      run.rounds(40);
      CHECK(run.total() == static_cast<std::uint64_t>(4 * row.anchor));
      CHECK(run.batches == (row.anchor > 1 ? 1 : 0));
      if (row.anchor > 1 && row.anchor < 64) CHECK(run.overhead <= row.target);
    }
  }

  TEST_CASE("a reason names the cost, the target, the batch and what it asks of learning rates") {
    SimulatedAccumulation run("");
    run.sync_seconds = 0.01;
    run.rounds(20);
    const auto raised = run.said_with(ReasonCode::accumulation_raised);
    REQUIRE(raised.size() == 1);
    CHECK(raised[0].outcome == Outcome::changed);
    CHECK(raised[0].policy == PolicyKind::accumulation);
    for (const char* part :
         {"takes 50.0 % of a step (10 of 20 ms)", "above the target of 10 %",
          "computes 10 micro-batches instead of 1", "160 samples, 10 times the job's batch",
          "linear rule gives x10,", "square root rule x3.162"}) {
      CAPTURE(part);
      CAPTURE(raised[0].text);
      CHECK(contains(raised[0].text, part));
    }
    const auto started = run.said_with(ReasonCode::accumulation_start);
    REQUIRE(started.size() == 1);
    CHECK(contains(started[0].text, "job's own batch of 16 samples"));
  }

  TEST_CASE("nothing is decided before so many rounds of the plan in force were seen") {
    SimulatedAccumulation run("accumulation.settle_rounds = 12");
    run.sync_seconds = 0.01;
    run.rounds(11);
    CHECK(run.batches == 0);
    run.rounds(1);
    CHECK(run.batches == 1);
    run.sync_seconds = 0.1;  // expensive again, but rounds of the old batch do not count
    run.rounds(2 + 11);
    CHECK(run.batches == 1);
    run.rounds(1);
    CHECK(run.batches == 2);
  }

  TEST_CASE("a job that cannot change its batch is told so once") {
    struct {
      std::uint64_t micro_batch;
      bool capable;
      const char* says;
    } const table[] = {{0, true, "micro-batches of a fixed size"}, {4, false, "step.accumulate()"}};
    for (const auto& row : table) {
      JobFacts job = accumulation_job();
      job.micro_batch = row.micro_batch;
      job.capabilities.accumulation = row.capable;
      SimulatedAccumulation run("", job);
      CHECK(run.state.plan.step_samples == 0);
      const auto told = run.said_with(ReasonCode::not_capable);
      REQUIRE(told.size() == 1);
      CHECK(told[0].outcome == Outcome::reported);
      CHECK(contains(told[0].text, row.says));
      run.job.micro_batch = std::max<std::uint64_t>(1, row.micro_batch);  // chosen by the loop
      for (int i = 0; i < 30; ++i) {
        StepSignals signals = run.next_signals();
        run.job.micro_batch = row.micro_batch;
        run.decide_on(signals);
        run.job.micro_batch = std::max<std::uint64_t>(1, row.micro_batch);
      }
      CHECK(run.said_with(ReasonCode::not_capable).size() == 1);
      CHECK(run.batches == 0);
    }
  }

  TEST_CASE("at its cap the policy says so once, and again after it was cheap in between") {
    SimulatedAccumulation run("accumulation.max_anchor = 4");
    run.sync_seconds = 0.01;
    run.rounds(100);
    CHECK(run.total() == 16);
    CHECK(run.batches == 1);
    const auto kept = run.said_with(ReasonCode::accumulation_kept);
    REQUIRE(kept.size() == 1);
    CHECK(contains(kept[0].text, "max_anchor is 4"));
    CHECK(contains(kept[0].text, "needs 9 micro-batches"));
    run.sync_seconds = 0.003;
    run.rounds(40);
    run.sync_seconds = 0.01;
    run.rounds(40);
    CHECK(run.said_with(ReasonCode::accumulation_kept).size() == 2);
    CHECK(run.batches == 1);
  }

  TEST_CASE("a job starts with the floor of the settings, and is never below its own batch") {
    SimulatedAccumulation floor("accumulation.min_anchor = 3");
    CHECK(floor.active.step_samples == 48);
    CHECK(floor.said_with(ReasonCode::accumulation_start)[0].outcome == Outcome::changed);
    floor.rounds(40);
    CHECK(floor.total() == 12);

    JobFacts job = accumulation_job();
    job.global_batch = 128;  // 8 micro-batches of each rank
    SimulatedAccumulation own("", job);
    own.sync_seconds = 0.0001;
    own.rounds(60);
    CHECK(own.active.step_samples == 0);
    CHECK(own.total() == 32);
    CHECK(own.batches == 0);
  }

  TEST_CASE("a batch that is no longer needed shrinks back to the job's own") {
    SimulatedAccumulation run("");
    run.sync_seconds = 0.01;
    run.rounds(20);
    REQUIRE(run.total() == 40);
    run.sync_seconds = 0.0048;  // 4.6 %: below half of the target
    run.rounds(20);
    CHECK(run.total() == 20);
    run.sync_seconds = 0.0004;
    run.rounds(20);
    CHECK(run.active.step_samples == 0);
    CHECK(run.batches == 3);
    const auto lowered = run.said_with(ReasonCode::accumulation_lowered);
    REQUIRE(lowered.size() == 2);
    CHECK(contains(lowered[0].text, "below half of the target"));
    CHECK(contains(lowered[1].text, "job's own batch of 16 samples"));
  }

  TEST_CASE("the last one to arrive tells what synchronising costs, not those who wait") {
    SimulatedAccumulation run("");
    run.slowness = {1, 1, 1, 3};  // the others wait for 20 ms of 30
    run.sync_seconds = 0.002;     // 6 %
    run.rounds(60);
    CHECK(run.batches == 0);
    run.sync_seconds = 0.01;  // 25 %: three times 30 ms are enough, 9 x 10 ms in micro-batches
    run.rounds(30);
    CHECK(run.total() == 16);
    CHECK(run.overhead <= 0.1);
  }

  TEST_CASE("where shares follow speeds the slowest has the anchor and the others more") {
    struct {
      std::vector<double> slowness;
      std::uint64_t total;  // at an anchor of 10
    } const table[] = {{{1, 1, 1, 1}, 40},
                       {{1, 1, 0.5, 0.25}, 10 + 10 + 20 + 40},
                       {{1, 1, 1, 0.7}, 10 + 10 + 10 + 14}};
    for (const auto& row : table) {
      std::vector<std::uint32_t> shares;
      for (const double s : row.slowness) {
        shares.push_back(static_cast<std::uint32_t>(std::lround(1000 / s)));
      }
      SimulatedAccumulation run("shares.mode = on", accumulation_job(),
                                {std::make_shared<test::TrueShares>(shares)});
      run.slowness = row.slowness;
      run.sync_seconds = 0.01;
      run.rounds(60);
      CHECK(run.total() == row.total);
      CHECK(run.overhead <= 0.1);
      CHECK(run.active.shares == shares);
    }
  }

  TEST_CASE("shares that are forced divide the batch, and one rank's part is the anchor") {
    SimulatedAccumulation run("force.shares = 1,1,2,4");
    run.slowness = {1, 1, 0.5, 0.25};
    run.sync_seconds = 0.01;
    run.rounds(60);
    CHECK(run.overhead <= 0.1);
    CHECK(run.micro_batches()[0] == 10);
    CHECK(run.total() == 80);
  }

  TEST_CASE("micro-batches of a step: one for each rank that works, caps, the job's batch") {
    JobFacts job = accumulation_job();
    SharesConfig shares;
    const auto batch = [&](std::uint64_t anchor, std::vector<double> ratios) {
      return step_micro_batches(anchor, ratios, job, shares);
    };
    CHECK(batch(1, {1, 1, 1, 1}) == 4);
    CHECK(batch(3, {1, 1.5, 2, 0}) == 3 + 5 + 6);  // 4.5 rounds up
    CHECK(batch(1, {1, 1.2, 1.4, 1.6}) == 5);
    CHECK(batch(1, {0.2, 1, 1, 1}) == 4);
    shares.max_samples = {{1, 10}};  // two micro-batches
    CHECK(batch(8, {1, 1, 1, 1}) == 26);
    shares.max_samples = {{1, 3}};  // less than one
    CHECK(batch(8, {1, 1, 1, 1}) == 24);
    shares.max_samples.clear();
    job.global_batch = 401;
    CHECK(batch(1, {1, 1, 1, 1}) == 101);
    job.global_batch = 0;
    CHECK(batch(1, {1, 1, 1, 1}) == 4);
    job.micro_batch = std::uint64_t{1} << 30;
    CHECK(batch(50, {1, 1, 1, 1}) == 2);  // the most that a plan can hold
  }

  TEST_CASE("reports that tell nothing about the plan in force do not count") {
    const std::function<void(RankSignal&)> changes[] = {
        [](RankSignal& s) { s.set(SignalFlag::finished); },
        [](RankSignal& s) { s.set(SignalFlag::step_repeated); },
        [](RankSignal& s) { s.set(SignalFlag::rolled_back); },
        [](RankSignal& s) { s.samples = 0; },
        [](RankSignal& s) { s.rounds = 0; },
        [](RankSignal& s) { s.phase_seconds[1] = -1; },
        [](RankSignal& s) { s.phase_seconds[4] = INFINITY; },
        [](RankSignal& s) { s.phase_seconds[4] = NAN; },
        [](RankSignal& s) { s.phase_seconds = {}; }};
    for (const auto& change : changes) {
      SimulatedAccumulation run("");
      run.sync_seconds = 0.01;
      run.change = change;
      run.rounds(40);
      CHECK(run.batches == 0);
    }
  }

  TEST_CASE("a loop without a batch of its own starts with the floor and grows from there") {
    JobFacts job = accumulation_job();
    job.global_batch = 0;
    SimulatedAccumulation run("accumulation.min_anchor = 2", job);
    CHECK(run.active.step_samples == 32);
    run.sync_seconds = 0.01;
    run.rounds(20);
    CHECK(run.active.step_samples == 160);
    CHECK(
        contains(run.said_with(ReasonCode::accumulation_raised)[0].text, "a step has 160 samples"));
  }

  TEST_CASE("a state of any bytes is read or refused, never trusted") {
    SimulatedAccumulation run("");
    run.sync_seconds = 0.01;
    run.rounds(6);
    const std::string good = state_of(run.state, "accumulation").bytes();
    testing::Random random(3);
    for (int i = 0; i < 300; ++i) {
      std::string bytes = good;
      for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
      }
      if (i % 7 == 0) bytes.resize(random.below(bytes.size()));
      SimulatedAccumulation again("");
      again.sync_seconds = 0.01;
      state_of(again.state, "accumulation") = PolicyState::from_bytes(bytes);
      again.rounds(12);
      REQUIRE(validate(again.state.plan, again.job).ok());
      CHECK(again.total() <= 4 * 64);
    }
  }
}

}  // namespace
}  // namespace cox
