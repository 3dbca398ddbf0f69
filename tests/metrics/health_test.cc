#include "metrics/health.h"

#include "metrics/telemetry_state.h"
#include "simulated_job.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("a job that waits or has finished is live however late it is") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{100});
    CHECK(liveness(*state.snapshot(), UnixTime{1e9}).good());
    job.steps(state, 3);
    state.finish();
    CHECK(liveness(*state.snapshot(), UnixTime{1e12}).good());
  }

  TEST_CASE("a training job without a round for long is not live, and the reason says since when") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 20);
    CHECK(liveness(*state.snapshot(), UnixTime{job.now() + 29}).good());
    const Health stalled = liveness(*state.snapshot(), UnixTime{job.now() + 95});
    CHECK_FALSE(stalled.good());
    CHECK(stalled.reason.find("no round since round 20") != std::string::npos);
    CHECK(stalled.reason.find("1 min 35 s") != std::string::npos);
  }

  TEST_CASE("long steps are given their time") {
    SimulatedSetup setup;
    setup.step_seconds = 12;
    SimulatedJob job(setup);
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 10);
    CHECK(stall_after_seconds(*state.snapshot()) > 200);
    CHECK(liveness(*state.snapshot(), UnixTime{job.now() + 150}).good());
  }

  TEST_CASE("a clock that steps back makes nobody dead") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{100});
    job.steps(state, 2);
    CHECK(liveness(*state.snapshot(), UnixTime{job.now() - 5000}).good());
  }

  TEST_CASE("ready once every rank has reported, and the missing are named before") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{100});
    job.missing_rank = 2;
    job.steps(state, 3);
    const Health waiting = readiness(*state.snapshot());
    CHECK_FALSE(waiting.good());
    CHECK(waiting.reason == "3 of 4 ranks have reported; waiting for rank 2");
    job.missing_rank = -1;
    job.step(state);
    job.missing_rank = 1;
    job.step(state);
    CHECK(readiness(*state.snapshot()).good());
  }
}
