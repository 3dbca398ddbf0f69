#include "metrics/topics/operators.h"

#include <cmath>
#include <limits>
#include <string>

#include "metrics/catalogue.h"
#include "metrics/routes.h"
#include "metrics/status_page.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/plan.h"
#include "tests/metrics/served_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

RankSignal report(std::int32_t rank, float flops, double wall_seconds, std::uint32_t rounds = 1) {
  RankSignal s;
  s.rank = RankId(rank);
  s.rounds = rounds;
  s.flops = flops;
  s.wall_seconds = wall_seconds;
  return s;
}

StepSignals round_of(std::vector<RankSignal> reports) {
  StepSignals signals;
  signals.reports = std::move(reports);
  return signals;
}

std::string page_of(const Served& served) {
  for (const Topic& topic : topics()) {
    if (std::string_view(topic.title) == "Operators")
      return section_html(topic.sections.front(), *served.snapshot);
  }
  return {};
}

// Returns the block profiles of a round. One block has no FLOPs.
StepSignals profiles() {
  StepSignals signals;
  for (std::uint16_t b = 0; b < 3; ++b) {
    BlockProfile profile;
    profile.block = BlockId(b);
    profile.blocks = 14;
    profile.forward_seconds = 0.25f * static_cast<float>(b + 1);
    profile.backward_seconds = 0.25f * static_cast<float>(b + 1);
    profile.flops = b == 1 ? 0 : 1e9f;
    RankSignal signal;
    signal.rank = RankId(b);
    signal.fragment = make_fragment(profile);
    signals.reports.push_back(signal);
  }
  return signals;
}

TEST_SUITE("metrics") {
  TEST_CASE("the FLOPs of a step are those of all ranks, and MFU is the mean of theirs") {
    const auto view = operators_view(round_of({report(0, 100, 2), report(1, 400, 4, 2)}), 200);
    REQUIRE(view);
    CHECK(view->step_flops == 300);
    CHECK(view->flops_per_second == 150);
    CHECK(view->mfu_ratio == 500.0 / (6 * 200));
    CHECK(std::isnan(operators_view(round_of({report(0, 100, 2)}), 0)->mfu_ratio));
  }

  TEST_CASE("a round without known FLOPs shows what was before") {
    const JobFacts job;
    const Decision decision;
    Snapshot snapshot;
    snapshot.peak_flops_per_device = 200;
    const auto play = [&](const StepSignals& signals) {
      operators_topic().follow({{signals, decision, {}, job, {}}}, snapshot);
      return snapshot.view<OperatorsView>();
    };
    play(round_of({report(0, 100, 2)}));
    RankSignal finished = report(0, 700, 1);
    finished.set(SignalFlag::finished);
    for (const RankSignal& s :
         {report(0, 0, 2), report(0, 100, 0), report(0, 100, 2, 0), finished,
          report(0, std::numeric_limits<float>::quiet_NaN(), 2),
          report(0, std::numeric_limits<float>::infinity(), 2), report(0, -5, 2),
          report(0, 100, std::numeric_limits<double>::infinity())}) {
      const auto view = play(round_of({s}));
      CHECK(view.step_flops == 100);
      CHECK(view.flops_per_second == 50);
      CHECK(view.mfu_ratio == 0.25);
    }
  }

  TEST_CASE("the page and the API show FLOPs, MFU, and rank 0's operators") {
    const Served served = served_after({}, 30);
    const std::string page = page_of(served);
    CHECK(contains(page, "32.0 GFLOP"));  // 4 ranks of 8 samples
    CHECK(contains(page, "of 250 GFLOP/s a device"));
    CHECK(contains(page, "aten::mm"));
    CHECK(contains(page, "<th class=\"n\">FLOP/s</th>"));  // an actual slash
    CHECK(contains(page, "mean of 2 sampled steps"));
    CHECK(contains(page, "3.00 ms in operators whose FLOPs are not counted"));
    const std::string status = respond({"GET", "/api/v1/status", ""}, served).body;
    CHECK(contains(status, "\"operators\":{\"step_flops\":3.2e+10,"));
    CHECK(contains(status, "\"mfu_ratio\":0."));
    const std::string ranks = respond({"GET", "/api/v1/ranks", ""}, served).body;
    CHECK(count(ranks, "\"step_flops\":8e+09") == 4);
    const std::string operators = respond({"GET", "/api/v1/operators", ""}, served).body;
    CHECK(contains(operators, "\"format\":\"coxswain-operators\""));
    CHECK(contains(operators, "\"forward_flops\":6e+09"));
  }

  TEST_CASE("a job whose operators nobody follows has no section, and series say so") {
    TelemetryState state(SimulatedJob({}).job(), UnixTime{1});
    const Served served{state.snapshot(), UnixTime{2}, {}};
    CHECK(page_of(served).empty());
    const std::string series = exposition(*served.snapshot);
    CHECK(contains(series, "\ncoxswain_step_flops 0\n"));
    CHECK_FALSE(contains(series, "\ncoxswain_mfu_ratio "));
  }

  TEST_CASE("blocks are listed with their FLOPs, the dearest first, where they have some") {
    Snapshot snapshot = *served_after({}, 30).snapshot;
    snapshot.views.set(std::make_shared<const PlanView>(
        PlanView{.costs = with_profiles(nullptr, 14, profiles())}));
    const std::string page = page_of({std::make_shared<const Snapshot>(snapshot), {}, {}});
    const auto first = page.find("h.1");  // block 2
    const auto last = page.find("embedding");
    REQUIRE(first != std::string::npos);
    CHECK(first < last);
    CHECK(contains(page, "667 MFLOP/s"));
    CHECK(contains(page, "2.00 GFLOP/s"));
    CHECK_FALSE(contains(page.substr(0, page.find("Operators of rank 0")), ">h.0<"));
  }
}

}  // namespace
}  // namespace cox::metrics
