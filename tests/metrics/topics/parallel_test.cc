#include "metrics/topics/parallel.h"

#include <cmath>
#include <limits>
#include <memory>

#include "metrics/status_page.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/progress.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

RankSignal report(std::int32_t rank, std::uint32_t samples, float reduction, float exposed) {
  RankSignal s;
  s.rank = RankId(rank);
  s.rounds = 1;
  s.samples = samples;
  s.reduction_seconds = reduction;
  s.reduction_exposed_seconds = exposed;
  return s;
}

JobFacts job_of(std::uint64_t micro_batch) {
  JobFacts job;
  job.world_size = 3;
  job.global_batch = 32;
  job.micro_batch = micro_batch;
  return job;
}

TEST_SUITE("metrics") {
  TEST_CASE("a round is seen as its batch, its uneven parts and what reducing cost") {
    StepSignals signals;
    signals.reports = {report(0, 4, 0.5f, 0.125f), report(1, 8, 0.25f, 0), report(2, 19, 1, 0.5f)};
    signals.reports[2].rounds = 2;  // 9.5 samples, 0.5 s and 0.25 s a round
    const ParallelView view = parallel_view(job_of(4), signals, {});
    CHECK(view.step_samples == 21.5);
    CHECK(view.micro_batches == 1);
    CHECK(view.rank_samples.min == 4);
    CHECK(view.rank_samples.max == 9.5);
    CHECK(view.rank_samples.rank_of_max == RankId(2));
    CHECK(view.reduction_seconds.median == 0.5);
    CHECK(view.exposed_seconds.median == 0.125);
    CHECK(view.exposed_seconds.max == 0.25);
    CHECK(hidden_ratio(view) == 0.75);
    CHECK(parallel_view(job_of(0), signals, {}).micro_batches == 0);
  }

  TEST_CASE("a round in which nobody worked shows what was before") {
    StepSignals signals;
    signals.reports = {report(0, 4, 1, 1)};
    const ParallelView before = parallel_view(job_of(4), signals, {});
    signals.reports[0].set(SignalFlag::finished);
    const ParallelView after = parallel_view(job_of(4), signals, before);
    CHECK(after.step_samples == 4);
    CHECK(after.reduction_seconds.max == 1);
  }

  TEST_CASE("times that are no times are left out, and without any the hidden part is unknown") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinite = std::numeric_limits<float>::infinity();
    StepSignals signals;
    signals.reports = {report(0, 4, nan, 0), report(1, 4, -1, 0), report(2, 4, infinite, nan)};
    ParallelView view = parallel_view(job_of(4), signals, {});
    CHECK(view.reduction_seconds.count == 0);
    CHECK(std::isnan(hidden_ratio(view)));
    signals.reports[1] = report(1, 4, 1, 0.25f);
    view = parallel_view(job_of(4), signals, {});
    CHECK(view.reduction_seconds.count == 1);
    CHECK(hidden_ratio(view) == 0.75);
    CHECK(hidden_ratio(1, 7) == 0);
  }

  TEST_CASE("the planned batch is the plan's, else the job's") {
    Plan plan;
    CHECK(planned_samples(plan, job_of(4)) == 32);
    plan.step_samples = 96;
    CHECK(planned_samples(plan, job_of(4)) == 96);
    CHECK(planned_samples({}, JobFacts{}) == 0);
  }

  TEST_CASE("the section has the writes and waits of an update, where ranks share parameters") {
    SimulatedJob job({.ranks = 2});
    TelemetryState telemetry(job.job(), {1});
    job.steps(telemetry, 1);
    const Section section = parallel_topic().sections.front();
    CHECK_FALSE(contains(section_html(section, *telemetry.snapshot()), "Shared updates"));
    telemetry.set(std::make_shared<const SharedUpdates>(SharedUpdates{2, 20, 3, 0.01, 1}));
    job.steps(telemetry, 1);
    CHECK(contains(section_html(section, *telemetry.snapshot()),
                   "10.0 writes and 1.5 waits each, 5.00 ms; 1 in a new order"));
  }

  TEST_CASE("telemetry counts steps that were done again, and ranks know their part of the batch") {
    SimulatedJob job({.ranks = 4, .uneven = true});
    TelemetryState telemetry(job.job(), {1});
    job.steps(telemetry, 5);
    job.repeating = true;
    job.steps(telemetry, 2);
    job.repeating = false;
    job.steps(telemetry, 3);
    job.finishing = true;
    job.steps(telemetry, 1);
    const auto s = telemetry.snapshot();
    CHECK(s->view<ProgressView>().repeated_rounds == 2);
    CHECK(s->view<ParallelView>().step_samples == (2 + 4 + 6 + 2) * 4);
    CHECK(s->view<ParallelView>().micro_batches == 2);
  }
}

}  // namespace
}  // namespace cox::metrics
