// The findings of the newest steps in the API, in metrics, and on the page.
#include "metrics/topics/findings.h"

#include <string>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/findings_watch.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

// Makes rank 2 take half as long again in forward.
class SlowRankTwo final : public StepSink {
 public:
  explicit SlowRankTwo(StepSink& next) : next_(next) {}
  void record(const StepRecord& record) override {
    StepSignals signals = record.signals;
    for (RankSignal& report : signals.reports) {
      if (report.rank == RankId(2)) report.phase_seconds[1] *= 1.5F;
    }
    next_.record({signals, record.decision, record.plan, record.job, record.counters,
                  record.memory_budget_bytes});
  }

 private:
  StepSink& next_;
};

struct Watched {
  Watched()
      : job({}),
        state(job.job(), UnixTime{1}),
        watch(state, [this](FindingsWatch::Found found) { state.set(std::move(found)); }) {}
  std::string get(const char* path) const {
    return respond({"GET", path, ""}, {state.snapshot(), UnixTime{job.now() + 1}, {}}).body;
  }

  SimulatedJob job;
  TelemetryState state;
  FindingsWatch watch;
  SlowRankTwo sink{watch};
};

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE(
      "a slow rank is found while the job runs, and shown everywhere from the next round on") {
    Watched it;
    it.job.steps(it.sink, 60);
    CHECK_FALSE(contains(it.get("/status"), "<h2>Findings</h2>"));
    CHECK(contains(it.get("/api/v1/findings"), "\"findings\":[]"));
    it.watch.look();
    it.job.step(it.sink);
    const std::string json = it.get("/api/v1/findings");
    CHECK(contains(json, "\"code\":\"DIST.STRAGGLER\",\"severity\":"));
    CHECK(contains(json, "\"ranks\":[2],\"evidence\":{\"slowdown_of_rank_2\":"));
    CHECK(contains(json, "\"cost_seconds\":"));
    CHECK(contains(json, "\"most_steps\":512}"));
    CHECK(contains(it.get("/metrics"), "\ncoxswain_finding_active{code=\"DIST.STRAGGLER\"} 1\n"));
    CHECK(contains(it.get("/metrics"), "\ncoxswain_finding_active{code=\"RULE.FAILED\"} 0\n"));
    const std::string page = it.get("/status");
    CHECK(contains(page, "<h2>Findings</h2>"));
    CHECK(contains(page, "Rank 2 is slower than the others"));
    CHECK(page.find("<h2>Findings</h2>") < page.find("<h2>Ranks</h2>"));
  }

  TEST_CASE("few steps say nothing, and the page says that") {
    Watched it;
    it.job.steps(it.sink, 5);
    it.watch.look();
    it.job.step(it.sink);
    CHECK(contains(it.get("/status"), "Too early to tell"));
  }

  TEST_CASE("when a job has ended its pages show what its last steps lost") {
    Watched it;
    it.job.steps(it.sink, 60);
    it.watch.finish();
    it.state.finish();
    CHECK(contains(it.get("/status"), "Rank 2 is slower than the others"));
  }
}
