#include "metrics/topics/heat_map.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "metrics/pages/template.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/served_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

RankSignal report(std::size_t rank, float seconds) {
  RankSignal s;
  s.rank = RankId(static_cast<std::int32_t>(rank));
  s.rounds = 1;
  s.phase_seconds[static_cast<std::size_t>(Phase::forward)] = seconds;
  return s;
}

// Plays rounds with given own seconds of each rank.
class Rounds {
 public:
  explicit Rounds(std::size_t ranks) : state_(job_of(ranks), UnixTime{1}), job_(job_of(ranks)) {}

  void play(const std::vector<RankSignal>& reports, const SlowFindings& slow = {}) {
    StepSignals signals;
    signals.round = RoundId(++round_);
    signals.reports = reports;
    Decision decision;
    decision.summary = summarize(signals);
    decision.slow = slow;
    state_.record({signals, decision, plan_, job_, {}});
  }
  std::shared_ptr<const Snapshot> snapshot() const { return state_.snapshot(); }

 private:
  static JobFacts job_of(std::size_t ranks) {
    JobFacts job;
    job.world_size = static_cast<std::int32_t>(ranks);
    return job;
  }

  TelemetryState state_;
  JobFacts job_;
  Plan plan_;
  std::uint64_t round_ = 0;
};

std::vector<RankSignal> even(std::size_t ranks) {
  std::vector<RankSignal> reports;
  for (std::size_t rank = 0; rank < ranks; ++rank) reports.push_back(report(rank, 1));
  return reports;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("the heat map keeps own work over the median of the last sixty rounds") {
    Rounds rounds(3);
    for (int i = 0; i < 70; ++i) rounds.play({report(0, 1), report(1, 1.5F), report(2, 1)});
    rounds.play({report(0, 1), report(2, 1)});
    const auto snapshot = rounds.snapshot();
    const auto& columns = snapshot->view<HeatMap>().columns;
    REQUIRE(columns.size() == kHeatRounds);
    CHECK(columns.front()->round == RoundId(12));
    CHECK(columns.front()->hundredths == std::vector<std::uint16_t>{100, 150, 100});
    CHECK(columns.back()->hundredths == std::vector<std::uint16_t>{100, HeatColumn::kNone, 100});
    const std::string html = render("heat_map.html", heat_section(*snapshot));
    for (const char* part :
         {"The last 60 rounds",
          "<title>rank 1: 1.50× on average, at most 1.50× in round 12</title>",
          "<path class=\"h4\" d=\"M0 1h59v1h-59z\"><title>rank 1, round 12 to 70: 1.50×</title>",
          "<title>rank 1, round 71: no work reported</title>",
          "aria-label=\"Own work of 3 ranks"}) {
      CAPTURE(part);
      CHECK(contains(html, part));
    }
  }

  TEST_CASE("reports that make no sense leave a gap, and huge ratios are cut") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Rounds rounds(8);
    auto reports = even(8);
    reports[1] = report(1, nan);
    reports[2] = report(2, -5);
    reports[3] = report(3, 1e30F);
    reports[4].rounds = 0;
    reports[5].set(SignalFlag::finished);
    rounds.play(reports);
    const auto snapshot = rounds.snapshot();
    const auto& values = snapshot->view<HeatMap>().columns.back()->hundredths;
    CHECK(values[1] == HeatColumn::kNone);
    CHECK(values[2] == HeatColumn::kNone);
    CHECK(values[3] == 65'535);
    CHECK(values[4] == HeatColumn::kNone);
    CHECK(values[5] == HeatColumn::kNone);
  }

  TEST_CASE("of many ranks it shows those named, the slowest and a spread of the others") {
    constexpr std::size_t kRanks = 16'384;
    Rounds rounds(kRanks);
    auto reports = even(kRanks);
    reports[9000] = report(9000, 2);
    SlowFindings slow;
    slow.ranks.emplace_back().rank = RankId(12'345);
    rounds.play(reports, slow);
    const auto snapshot = rounds.snapshot();
    const std::vector<std::size_t> shown = heat_ranks(*snapshot);
    REQUIRE(shown.size() == kHeatRanks);
    CHECK(std::is_sorted(shown.begin(), shown.end()));
    CHECK(std::adjacent_find(shown.begin(), shown.end()) == shown.end());
    for (const std::size_t rank : {std::size_t{9000}, std::size_t{12'345}, kRanks - 1})
      CHECK(std::find(shown.begin(), shown.end(), rank) != shown.end());
  }

  TEST_CASE("the section stays small whatever the ranks do, and holes are no waste") {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> seconds(0.2F, 3);
    for (const std::size_t ranks : {std::size_t{32}, std::size_t{33}, std::size_t{16'384}}) {
      Rounds rounds(ranks);
      for (int round = 0; round < 60; ++round) {
        std::vector<RankSignal> reports;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          if (random() % 7 != 0) reports.push_back(report(rank, seconds(random)));
        }
        rounds.play(reports);
      }
      CAPTURE(ranks);
      const auto snapshot = rounds.snapshot();
      CHECK(render("heat_map.html", heat_section(*snapshot)).size() < 32'000);
      CHECK(heat_json(*snapshot, "").value().size() < 32'000);
    }
  }

  TEST_CASE("the rounds of the ranks are a document of their own") {
    Rounds rounds(2);
    rounds.play({report(0, 1)});
    rounds.play({report(0, 1), report(1, 1)});
    const Served served{rounds.snapshot(), UnixTime{2}, {}};
    const auto get = [&served](std::string_view query) {
      return respond({"GET", "/api/v1/ranks/rounds", std::string(query)}, served);
    };
    CHECK(get("").body ==
          "{\"world_size\":2,\"rounds\":[1,2],\"ranks\":[{\"rank\":0,\"work_ratio\":[1,1]},"
          "{\"rank\":1,\"work_ratio\":[null,1]}]}");
    CHECK(contains(get("rank=1").body, "\"ranks\":[{\"rank\":1,"));
    CHECK(contains(get("rank=18446744073709551615").body, "\"ranks\":[]"));
    CHECK(get("rank=x").status == 400);
  }
}

}  // namespace cox::metrics
