#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "metrics/health.h"
#include "metrics/histogram.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/plan.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "simulated_job.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

SimulatedSetup small() {
  SimulatedSetup setup;
  setup.ranks = 4;
  return setup;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a view is found by its type; a default one stands in where none was set") {
    struct Mine {
      int number = 7;
    };
    struct Other {
      int number = 8;
    };
    Snapshot snapshot;
    CHECK(snapshot.view<Mine>().number == 7);
    CHECK(snapshot.views.find<Mine>() == nullptr);
    snapshot.views.set(std::make_shared<const Mine>(Mine{1}));
    snapshot.views.set(std::make_shared<const Other>(Other{2}));
    const Snapshot copy = snapshot;
    snapshot.views.set(std::make_shared<const Mine>(Mine{3}));
    CHECK(snapshot.view<Mine>().number == 3);
    CHECK(snapshot.view<Other>().number == 2);
    CHECK(copy.view<Mine>().number == 1);
    CHECK(copy.views.find<Other>() == snapshot.views.find<Other>());
    snapshot.views.set<Mine>(nullptr);
    CHECK(snapshot.views.find<Mine>() == nullptr);
    CHECK(snapshot.view<Mine>().number == 7);
  }

  TEST_CASE("a view that did not change is shared by the snapshots of all rounds") {
    SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    state.set(simulated_operators());
    job.steps(state, 30);
    const auto held = state.snapshot();
    job.step(state);
    const auto newer = state.snapshot();
    CHECK(held->views.find<OperatorTable>() == newer->views.find<OperatorTable>());
    CHECK(held->views.find<MemoryView>() == newer->views.find<MemoryView>());
    CHECK(held->views.find<NumericsView>() == newer->views.find<NumericsView>());
    CHECK(held->views.find<ProgressView>() != newer->views.find<ProgressView>());
  }

  TEST_CASE("before the first round the job waits and every rank is unseen") {
    const SimulatedJob job(small());
    const TelemetryState state(job.job(), UnixTime{100});
    const auto s = state.snapshot();
    CHECK(s->state == JobState::waiting);
    CHECK(s->view<RanksView>().ranks_seen() == 0);
    CHECK(readiness(*s).reason == "0 of 4 ranks have reported; waiting for rank 0, 1, 2, 3");
    CHECK(s->started.seconds == 100);
    CHECK(std::isnan(s->summary.loss));
  }

  TEST_CASE("counters add up over rounds") {
    SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 50);
    const auto s = state.snapshot();
    CHECK(s->control.rounds == 50);
    CHECK(s->view<ProgressView>().samples == 50 * 4 * 8);
    CHECK(s->view<ProgressView>().tokens == 50 * 4 * 8 * 256);
    CHECK(s->view<ProgressView>().step_seconds.count() == 50);
    CHECK(s->view<DecisionsView>().decide_seconds.count() == 50);
    CHECK(s->plan->id.number == 1);
    CHECK(s->view<PlanView>().activation_lag_rounds == 1);
    CHECK(s->view<RanksView>().ranks_seen() == 4);
    CHECK(s->view<RanksView>().table->rows.size() == 4);
  }

  TEST_CASE("a held snapshot does not change while the job goes on") {
    SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 60);
    const auto held = state.snapshot();
    const double loss = held->summary.loss;
    const std::size_t decisions = held->view<DecisionsView>().list->size();
    job.steps(state, 60);
    CHECK(held->summary.loss == loss);
    CHECK(held->view<DecisionsView>().list->size() == decisions);
    CHECK(held->control.rounds == 60);
    CHECK(state.snapshot()->control.rounds == 120);
  }

  TEST_CASE("non-finite rounds are counted and poison nothing") {
    SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 10);
    job.nonfinite = true;
    job.steps(state, 3);
    job.nonfinite = false;
    job.steps(state, 2);
    const auto s = state.snapshot();
    CHECK(s->view<ProgressView>().nonfinite_loss_rounds == 3);
    CHECK(s->view<ProgressView>().skipped_rounds == 3);
    CHECK(std::isfinite(s->view<ProgressView>().step_seconds.sum()));
    CHECK(std::isfinite(s->summary.loss));
  }

  TEST_CASE("a plan that makes room for the next one in its last round has its lag counted") {
    const SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    Plan plan;
    const auto round = [&](std::uint64_t number, bool publishes) {
      StepSignals signals;
      signals.round = RoundId(number);
      Decision decision;
      if (publishes) {
        ++plan.id.number;
        decision.plan = plan;
      }
      state.record({signals, decision, plan, job.job(), {}});
    };
    round(10, true);
    round(13, true);  // the first plan is in force everywhere, so no longer in flight
    CHECK(state.snapshot()->view<PlanView>().activation_lag_rounds == 3);
    round(14, false);
    round(18, true);
    CHECK(state.snapshot()->view<PlanView>().activation_lag_rounds == 5);
    CHECK(state.snapshot()->view<PlanView>().activated_plan == 2);
  }

  TEST_CASE("a decide time that is not finite is kept out and counted") {
    const SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    const StepSignals signals;
    const Decision decision;
    const Plan plan;
    StepRecord record{signals, decision, plan, job.job(), {}};
    record.counters.decide_seconds = std::numeric_limits<double>::quiet_NaN();
    state.record(record);
    record.counters.decide_seconds = 0.001;
    state.record(record);
    CHECK(state.snapshot()->view<DecisionsView>().decide_seconds.refused() == 1);
    CHECK(state.snapshot()->view<DecisionsView>().decide_seconds.count() == 1);
    CHECK(state.snapshot()->view<DecisionsView>().decide_seconds.sum() == doctest::Approx(0.001));
  }

  TEST_CASE(
      "a histogram counts a value on a bound in that bucket and refuses what is no duration") {
    const double bounds[] = {0.1, 1};
    BucketCounts counts(bounds);
    counts.observe(0.1);
    counts.observe(0.2, 3);
    counts.observe(5);
    CHECK(counts.refused() == 0);
    counts.observe(std::numeric_limits<double>::quiet_NaN());
    counts.observe(std::numeric_limits<double>::infinity());
    counts.observe(-1);
    CHECK(counts.refused() == 3);
    CHECK(counts.cumulative(0) == 1);
    CHECK(counts.cumulative(1) == 4);
    CHECK(counts.count() == 5);
    CHECK(counts.sum() == doctest::Approx(5.7));
  }

  TEST_CASE("the curve keeps the newest rounds, oldest first") {
    RoundPoints points;
    for (std::uint64_t round = 1; round <= kPointsKept + 50; ++round)
      add_point(points, {RoundId(round), 0, 0, 1, 0, 0});
    CHECK(points.size() == kPointsKept);
    CHECK(points[0].round == RoundId(51));
    CHECK(points[points.size() - 1].round == RoundId(kPointsKept + 50));
  }

  TEST_CASE("the newest ranks of a large job are shown about once a second") {
    SimulatedSetup setup = small();
    setup.ranks = 300;
    setup.step_seconds = 0.4;
    SimulatedJob job(setup);
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 2);
    CHECK(state.snapshot()->view<RanksView>().table->round == RoundId(1));
    job.steps(state, 2);
    CHECK(state.snapshot()->view<RanksView>().table->round == RoundId(4));
  }

  TEST_CASE("readers on other threads always see a whole round") {
    SimulatedJob job(small());
    TelemetryState state(job.job(), UnixTime{100});
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    const auto read = [&] {
      while (!stop) {
        const auto s = state.snapshot();
        if (s->control.rounds != s->summary.round.value()) ++wrong;
        if (s->view<ProgressView>().samples != s->control.rounds * 32) ++wrong;
      }
    };
    std::thread a(read);
    std::thread b(read);
    job.steps(state, 400);
    stop = true;
    a.join();
    b.join();
    CHECK(wrong == 0);
  }
}
