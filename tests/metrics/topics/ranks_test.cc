#include "metrics/topics/ranks.h"

#include <algorithm>
#include <memory>
#include <string>

#include "metrics/catalogue.h"
#include "metrics/pages/template.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/served_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

SlowRank slow_rank(std::int32_t rank, SlowState state) {
  SlowRank slow;
  slow.rank = RankId(rank);
  slow.state = state;
  slow.phase_index = 1;
  slow.since = RoundId(1041);
  slow.slowdown_ratio = 1.3;
  slow.slowdown_low = 1.25;
  slow.slowdown_high = 1.35;
  slow.rarity = 9.7;
  return slow;
}

// Returns the pages of a job of eight ranks after one round with these findings.
Served served_with(const SlowFindings& slow, std::int32_t ranks = 8) {
  JobFacts job;
  job.world_size = ranks;
  StepSignals signals;
  signals.round = RoundId(2000);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    RankSignal& report = signals.reports.emplace_back();
    report.rank = RankId(rank);
    report.rounds = 2;
    report.phase_seconds[static_cast<std::size_t>(Phase::backward)] = 4;
    report.phase_seconds[static_cast<std::size_t>(Phase::communication)] = 2;
    report.recompute_seconds = 1;
    report.waiting_seconds = 99;  // exceeds the phase, so clamped to it
    if (rank != 1) report.set(SignalFlag::waiting_measured);
  }
  Decision decision;
  decision.summary = summarize(signals);
  decision.slow = slow;
  TelemetryState state(job, UnixTime{1});
  state.record({signals, decision, Plan{}, job, {}});
  return {state.snapshot(), UnixTime{2}, {}};
}

SlowFindings three_states() {
  SlowFindings slow;
  slow.ranks = {slow_rank(5, SlowState::confirmed), slow_rank(3, SlowState::suspected),
                slow_rank(6, SlowState::recovered)};
  slow.ranks[1].against = ComparedWith::own_past;
  slow.ranks[2].until = RoundId(1100);
  slow.confirmed = slow.suspected = slow.recovered = 1;
  return slow;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("the rank table says state, size, phase, since when, how surely and against whom") {
    const std::string html =
        render("ranks.html", ranks_section(*served_with(three_states()).snapshot));
    for (const char* part :
         {"8 of 8 training, 1 slow, 1 suspected, 1 recovered.", "1.30× <small>1.25 to 1.35</small>",
          "in forward since round 1,041, against the other ranks; chance alone: 1 in "
          "10<sup>9</sup>",
          "against its own past", "from round 1,041 to 1,100", "title=\"waiting 1.00 s\"",
          "title=\"recompute 500 ms\"", "waiting for the last rank"}) {
      CAPTURE(part);
      CHECK(contains(html, part));
    }
    const auto row = [&html](int rank) {
      return html.find("rank?rank=" + std::to_string(rank) + "\">");
    };
    CHECK(row(5) < row(3));
    CHECK(row(3) < row(6));
    CHECK(row(6) < row(0));
    CHECK(row(0) < row(1));
  }

  TEST_CASE("a job without findings needs no words about them") {
    const std::string html = render("ranks.html", ranks_section(*served_with({}).snapshot));
    CHECK(contains(html, "8 of 8 training."));
    CHECK_FALSE(contains(html, "Suspected"));
    CHECK_FALSE(contains(html, "class=\"note\""));
  }

  TEST_CASE("a slow job and slow hosts are said above the ranks, some hosts by number") {
    SlowFindings slow = three_states();
    SlowJob job;
    job.slowdown_ratio = 1.4;
    job.slowdown_low = 1.3;
    job.slowdown_high = 1.5;
    job.since = RoundId(1500);
    slow.job = job;
    for (std::int32_t node = 0; node < 7; ++node)
      slow.hosts.push_back({NodeId(node), 4, RoundId(9), 1.2});
    const Served served = served_with(slow);
    const std::string html = render("ranks.html", ranks_section(*served.snapshot));
    for (const char* part : {"The whole job is slower than it was: 1.40× (1.30 to 1.50) since",
                             "All 4 ranks of host 3 are slow, 1.20×", "3 more hosts are slow"}) {
      CAPTURE(part);
      CHECK(contains(html, part));
    }
    const std::string status = respond({"GET", "/api/v1/status", ""}, served).body;
    for (const char* part :
         {"\"slow_job\":{\"slowdown_ratio\":1.4,", "\"slow_hosts\":[{\"node\":0,\"ranks\":4,",
          "\"watched\":[{\"rank\":3,\"state\":\"suspected\",\"phase\":\"forward\","}) {
      CAPTURE(part);
      CHECK(contains(status, part));
    }
  }

  TEST_CASE("series tell the ranks by speed, slowdowns with their intervals, waiting, recompute") {
    SlowFindings slow = three_states();
    slow.job.emplace().slowdown_ratio = 1.4;
    const std::string text = exposition(*served_with(slow).snapshot);
    for (const char* line :
         {"coxswain_ranks_by_speed{state=\"ordinary\"} 5\n",
          "coxswain_ranks_by_speed{state=\"slow\"} 1\n",
          "coxswain_straggler_slowdown_ratio{bound=\"low\"} 1.25\n",
          "coxswain_straggler_slowdown_ratio{bound=\"high\"} 1.35\n",
          "coxswain_job_slowdown_ratio{bound=\"mean\"} 1.4\n", "coxswain_slow_hosts 0\n",
          "coxswain_rank_waiting_duration_seconds{stat=\"max\"} 1\n",
          "coxswain_rank_recompute_duration_seconds{stat=\"median\"} 0.5\n"}) {
      CAPTURE(line);
      CHECK(contains(text, line));
    }
    const std::string quiet = exposition(*served_with({}).snapshot);
    CHECK(contains(quiet, "coxswain_straggler_slowdown_ratio{bound=\"high\"} 1\n"));
    CHECK(contains(quiet, "coxswain_job_slowdown_ratio{bound=\"low\"} 1\n"));
  }

  TEST_CASE(
      "the detail of a rank has its waiting where it is measured, and what is thought of it") {
    const Served served = served_with(three_states());
    const std::string ranks = respond({"GET", "/api/v1/ranks", ""}, served).body;
    CHECK(contains(ranks, "\"waiting_seconds\":1,\"recompute_seconds\":0.5,\"slowness\":null"));
    CHECK(contains(ranks, "\"waiting_seconds\":null,"));
    CHECK(contains(ranks, "\"slowness\":{\"rank\":5,\"state\":\"confirmed\","));
  }

  TEST_CASE("hosts are named, what is unusual is said in words, and hostile names stay text") {
    const std::string name = "<img src=x>\"&\xff";
    Served served = served_with(three_states());
    Snapshot snapshot = *served.snapshot;
    StepSignals signals;
    HostEvidence evidence;
    std::copy(name.begin(), name.end(), evidence.host.begin());
    evidence.steal_ratio = 0.35F;
    evidence.load_per_core = 2.5F;
    evidence.clock_ratio = 0.5F;
    evidence.io_pressure = 0.01F;
    signals.reports.emplace_back().rank = RankId(5);
    signals.reports[0].fragment = make_fragment(evidence);
    signals.reports.emplace_back().rank = RankId(6);
    signals.reports[1].fragment = signals.reports[0].fragment;
    signals.reports[1].fragment.size = 3;  // cannot be decoded
    RanksView view = snapshot.view<RanksView>();
    view.hosts.add(signals, view.slow);
    CHECK(view.hosts.find(RankId(6)) == nullptr);
    snapshot.views.set(std::make_shared<const RanksView>(std::move(view)));
    const std::string html = render("ranks.html", ranks_section(snapshot));
    CHECK_FALSE(contains(html, "<img"));
    CHECK(contains(html, "&lt;img src=x&gt;"));
    CHECK(contains(html,
                   "Host: 35 % of the cores&#39; time goes to other virtual machines; 2.5 "
                   "threads a core want to run; its cores run at 50 % of their largest clock"));
    served.snapshot = std::make_shared<const Snapshot>(snapshot);
    const std::string ranks = respond({"GET", "/api/v1/ranks", ""}, served).body;
    CHECK(contains(ranks, "\"throttled\":null,"));
    CHECK(contains(ranks, "\"host\":null"));
    const std::string text = exposition(snapshot);
    CHECK(contains(text, "coxswain_host_pressure_ratio{resource=\"throttled\"} 0\n"));
    CHECK(contains(text, "coxswain_host_load_per_core 2.5\n"));
    CHECK(contains(text, "coxswain_host_clock_ratio 0.5\n"));
    CHECK_FALSE(contains(exposition(*served_with({}).snapshot), "\ncoxswain_host_clock_ratio "));
  }

  TEST_CASE("notes of hosts are bounded, and ranks that are named still get one") {
    SlowFindings slow;
    slow.ranks = {slow_rank(16'000, SlowState::confirmed)};
    StepSignals signals;
    for (std::int32_t rank = 0; rank < 16'384; ++rank) {
      signals.reports.emplace_back().rank = RankId(rank);
      signals.reports.back().fragment = make_fragment(HostEvidence{});
    }
    HostNotes notes;
    notes.add(signals, slow);
    CHECK(notes.list->size() == kHostNotes + 1);
    CHECK(notes.find(RankId(16'000)) != nullptr);
    CHECK(notes.find(RankId(15'999)) == nullptr);
  }

  TEST_CASE("of a large job eight ranks are shown, the worst first, in a bounded page") {
    SlowFindings slow;
    for (std::int32_t i = 0; i < 16; ++i)
      slow.ranks.push_back(slow_rank(16'000 + i, SlowState::confirmed));
    slow.confirmed = 900;
    const std::string html =
        render("ranks.html", ranks_section(*served_with(slow, 16'384).snapshot));
    CHECK(contains(html, "16,384 of 16,384 training, 900 slow. 8 are shown"));
    CHECK(contains(html, "<a href=\"/status/rank?rank=16000\">16000</a></td>"));
    CHECK_FALSE(contains(html, ">0</a></td>"));
    CHECK(contains(html, "More about rank"));
    CHECK(html.size() < 16'000);
  }
}

}  // namespace cox::metrics
