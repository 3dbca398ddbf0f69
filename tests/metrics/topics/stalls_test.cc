// A rank that keeps others waiting: on the page, in the API, in metrics, in /livez.
#include "metrics/topics/stalls.h"

#include <optional>
#include <string>

#include "metrics/catalogue.h"
#include "metrics/health.h"
#include "metrics/routes.h"
#include "metrics/status_page.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

// Returns a stall in which rank 1 of four keeps the others waiting.
Stall stall_of(Activity activity, ProcessState process, double seconds) {
  Stall stall;
  stall.seconds = seconds;
  stall.waiting = {RankId(0), RankId(2), RankId(3)};
  RankMark mark;
  mark.rank = RankId(1);
  mark.activity = activity;
  mark.process = process;
  mark.step = StepId(212);
  mark.activity_seconds = mark.round_seconds = seconds;
  stall.culprits = {mark};
  return stall;
}

struct Shown {
  Shown() : state(job.job(), UnixTime{1}) { job.steps(state, 20); }
  Served served(double later) const { return {state.snapshot(), UnixTime{job.now() + later}, {}}; }
  std::string get(const char* path, double later) const {
    return respond({"GET", path, ""}, served(later)).body;
  }

  SimulatedJob job{{}};
  TelemetryState state;
};

constexpr const char* kSentence =
    "ank 1 is in backward of step 212 for 6.2 s, its process is stopped; ranks 0, 2-3 wait for it";

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a rank that keeps others waiting is named everywhere, at once") {
    Shown it;
    it.state.set_stall(stall_of(Activity::backward, ProcessState::stopped, 6.2),
                       UnixTime{it.job.now() + 7});
    for (const char* path : {"/status", "/livez", "/api/v1/status"}) {
      CAPTURE(path);
      CHECK(contains(it.get(path, 8), kSentence));
    }
    const std::string page = it.get("/status", 8);
    CHECK(contains(page, "◌ waiting"));
    CHECK(contains(page, "others wait"));
    CHECK(contains(it.get("/api/v1/status", 8), "\"waiting\":[0,2,3],\"silent\":[]"));
    const std::string ranks = it.get("/api/v1/ranks", 8);
    CHECK(contains(ranks, "\"now\":{\"rank\":1,\"phase\":\"backward\",\"step\":212,"));
    CHECK(contains(ranks, "\"process\":\"stopped\""));
    CHECK(contains(ranks, "\"now\":\"waiting\""));
    const std::string metrics = it.get("/metrics", 8);
    CHECK(contains(metrics, "\ncoxswain_stall_duration_seconds 6.2\n"));
    CHECK(contains(metrics, "\ncoxswain_stall_rank 1\n"));
    CHECK(contains(metrics, "\ncoxswain_stall_ranks{part=\"waiting\"} 3\n"));
    CHECK(liveness(*it.state.snapshot(), UnixTime{it.job.now() + 8}).good());
  }

  TEST_CASE("when the wait is over, or the job, nothing of it is left") {
    Shown it;
    const Stall stall = stall_of(Activity::backward, ProcessState::running, 6.2);
    it.state.set_stall(stall, UnixTime{it.job.now() + 7});
    it.state.set_stall(std::nullopt, UnixTime{it.job.now() + 8});
    CHECK_FALSE(contains(it.get("/status", 8), "backward of step 212"));
    CHECK(contains(it.get("/api/v1/status", 8), "\"stall\":null"));
    CHECK(contains(it.get("/metrics", 8), "\ncoxswain_stall_rank -1\n"));
    it.state.set_stall(stall, UnixTime{it.job.now() + 9});
    it.state.finish();
    CHECK_FALSE(contains(it.get("/status", 8), "backward of step 212"));
  }

  TEST_CASE("a long stall is a failure that names the rank, a long save is none") {
    Shown it;
    it.state.set_stall(stall_of(Activity::forward, ProcessState::running, 300),
                       UnixTime{it.job.now() + 300});
    const Health stalled = liveness(*it.state.snapshot(), UnixTime{it.job.now() + 300});
    CHECK_FALSE(stalled.good());
    CHECK(contains(stalled.reason, "rank 1 is in forward of step 212 for 5 min 00 s"));
    it.state.set_stall(stall_of(Activity::saving, ProcessState::running, 300),
                       UnixTime{it.job.now() + 300});
    const Health saving = liveness(*it.state.snapshot(), UnixTime{it.job.now() + 300});
    CHECK(saving.good());
    CHECK(contains(saving.reason, "rank 1 saves after step 212"));
    CHECK(contains(it.get("/status", 300), "◌ saving"));
  }

  TEST_CASE("a rank that keeps others from their first round is named as well") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    state.set_stall(stall_of(Activity::data, ProcessState::running, 9), UnixTime{10});
    const Served served{state.snapshot(), UnixTime{11}, {}};
    CHECK(contains(respond({"GET", "/livez", ""}, served).body, "rank 1 is in data of step 212"));
    CHECK(contains(status_page(served), "ank 1 is in data of step 212"));
  }

  TEST_CASE("ranks of which nothing is heard are told as that") {
    Shown it;
    Stall stall = stall_of(Activity::data, ProcessState::running, 9);
    stall.culprits.clear();
    stall.silent = {RankId(1)};
    it.state.set_stall(stall, UnixTime{it.job.now()});
    CHECK(contains(it.get("/metrics", 1), "\ncoxswain_stall_rank 1\n"));
    CHECK(contains(it.get("/api/v1/status", 1), "\"silent\":[1]"));
    CHECK(contains(it.get("/livez", 1), "for rank 1, from which no status arrives"));
  }
}
