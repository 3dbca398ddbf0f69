// Findings during a run equal those of `cox analyze` afterwards for the same steps. The steps take
// both ways: as reports through telemetry, and as rows through run directories.
#include "metrics/live_window.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/findings_watch.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/run_store.h"
#include "tests/metrics/records/run_fixture.h"
#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

namespace fs = std::filesystem;

using diagnosis::Finding;

// One step of one rank, the source of a report and a row.
struct Step {
  std::uint64_t number = 0;
  PhaseSeconds phases{};
  double waiting = 0;
  float recompute = 0;
  float save = 0;
  double loss = 0;
  double gradient_norm = 0;
  float loss_scale = 0;
  bool is_skipped = false;
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  std::uint64_t limit = 0;
  AllocatorEvidence allocator{};  // reserved 0: a rank on the CPU
};
Step step_at(std::uint64_t number) {
  Step step;
  step.number = number;
  return step;
}
using Steps = std::vector<Step>;  // one rank's
using Ranks = std::vector<Steps>;

// Fills a report as the session does.
RankSignal report_of(const Step& step, std::size_t rank) {
  RankSignal out;
  out.rank = RankId(static_cast<std::int32_t>(rank));
  out.round = RoundId(step.number + 7);
  out.step = StepId(step.number);
  out.plan_applied = step.number / 50;
  out.rounds = 1;
  out.phase_seconds = step.phases;
  out.waiting_seconds = static_cast<float>(step.waiting);
  out.set(SignalFlag::waiting_measured);
  out.recompute_seconds = step.recompute;
  out.reduction_seconds = 2 * step.phases[static_cast<std::size_t>(Phase::communication)];
  out.reduction_exposed_seconds = out.reduction_seconds / 2;
  out.save_seconds = step.save;
  out.loss = step.loss;
  out.weight = 4;
  out.gradient_norm = step.gradient_norm;
  out.loss_scale = step.loss_scale;
  if (step.is_skipped) out.set(SignalFlag::step_skipped);
  out.memory_used_bytes = step.used;
  out.memory_peak_bytes = step.peak;
  out.memory_limit_bytes = step.limit;
  // Sent rarely, because small changes are not worth a report.
  if (step.allocator.reserved_bytes > 0 && step.number % 40 == 0)
    out.fragment = make_fragment(step.allocator);
  return out;
}

StepRow row_by_rank(const Step& step) {
  StepRow out;
  out.step = StepId(step.number);
  out.round = RoundId(step.number + 7);
  out.timestamp = 1.75e9 + static_cast<double>(step.number);
  out.phase_seconds = step.phases;
  out.waiting_seconds = static_cast<float>(step.waiting);
  out.recompute_seconds = step.recompute;
  out.reduction_seconds = 2 * step.phases[static_cast<std::size_t>(Phase::communication)];
  out.reduction_exposed_seconds = out.reduction_seconds / 2;
  out.save_seconds = step.save;
  out.loss = step.loss;
  if (!std::isnan(step.gradient_norm)) out.gradient_norm = step.gradient_norm;
  if (step.loss_scale > 0) out.loss_scale = static_cast<double>(step.loss_scale);
  out.was_skipped = step.is_skipped;
  out.memory_alloc_bytes = out.memory_reserved_bytes = step.used;
  out.memory_peak_alloc_bytes = out.memory_peak_reserved_bytes = step.peak;
  if (step.allocator.reserved_bytes > 0) {
    out.allocator = step.allocator;
    out.memory_reserved_bytes = out.memory_peak_reserved_bytes = step.allocator.reserved_bytes;
  }
  if (step.limit > 0) out.headroom_bytes = static_cast<std::int64_t>(step.limit - step.peak);
  out.plan = step.number / 50;
  return out;
}

class NoSink final : public StepSink {
 public:
  void record(const StepRecord&) override {}
};

JobFacts job_of(std::size_t ranks) {
  JobFacts job;
  job.world_size = static_cast<std::int32_t>(ranks);
  return job;
}

// Returns the findings of the running job's telemetry.
FindingsView live(const Ranks& ranks) {
  NoSink end;
  FindingsWatch watch(end, [](FindingsWatch::Found) {});
  const JobFacts job = job_of(ranks.size());
  Decision decision;
  Plan plan = initial_plan(job);
  for (std::size_t s = 0; s < ranks[0].size(); ++s) {
    StepSignals signals;
    signals.now = UnixTime{1.75e9 + static_cast<double>(s)};
    for (std::size_t r = 0; r < ranks.size(); ++r)
      signals.reports.push_back(report_of(ranks[r][s], r));
    watch.record({signals, decision, plan, job, {}});
  }
  return *watch.look();
}

// Returns the findings of run directories with only the last steps.
std::vector<Finding> afterwards(const Ranks& ranks, std::size_t steps) {
  const TemporaryFolder directory;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RunInfo info;
    info.name = "run";
    info.rank = RankId(static_cast<std::int32_t>(r));
    info.world_size = static_cast<std::int32_t>(ranks.size());
    auto store = RunStoreWriter::open(directory.path(), info);
    REQUIRE(store.ok());
    const std::size_t first = ranks[r].size() - std::min(steps, ranks[r].size());
    for (std::size_t s = first; s < ranks[r].size(); ++s) (*store)->push(row_by_rank(ranks[r][s]));
    REQUIRE((*store)->close().ok());
  }
  const auto run = io::read_run(directory.path());
  REQUIRE(run.ok());
  const diagnosis::RunView view = diagnosis::view_of(*run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  return diagnosis::own_findings({&view, &budget, std::nullopt});
}

// Returns two ranks. The second is slower, and the first waits for it.
Ranks half_slow_run(std::size_t steps) {
  Ranks ranks(2);
  std::mt19937_64 random(7);
  for (std::size_t s = 0; s < steps; ++s) {
    const float noise = 0.001F * static_cast<float>(random() % 10);
    for (std::size_t r = 0; r < 2; ++r) {
      Step step = step_at(s);
      step.phases = {0.001F, 0.1F + noise, (r == 1 ? 0.3F : 0.2F) + noise, 0,
                     r == 1 ? 0.01F : 0.11F};
      step.loss = 4 - 0.02 * static_cast<double>(s);
      ranks[r].push_back(step);
    }
  }
  return ranks;
}

RankSignal last_report(std::size_t rank, std::size_t step) {
  RankSignal last;
  last.rank = RankId(static_cast<std::int32_t>(rank));
  last.step = StepId(step);
  last.loss = last.gradient_norm = std::nan("");
  last.rounds = 1;
  last.set(SignalFlag::finished);
  return last;
}

// Ranks whose reports wait, merged with later ones, until they are sent.
class LateRanks {
 public:
  LateRanks(FindingsWatch& watch, std::size_t ranks) : watch_(watch), job_(job_of(ranks)) {}

  void add(const RankSignal& report) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    if (rank == waiting_.size()) {
      waiting_.push_back(report);
    } else {
      waiting_[rank] = merge_reports(waiting_[rank], report);
    }
  }
  void send() {
    StepSignals signals;
    signals.now = UnixTime{1.75e9};
    signals.reports = std::exchange(waiting_, {});
    watch_.record({signals, decision_, plan_, job_, {}});
  }

 private:
  FindingsWatch& watch_;
  const JobFacts job_;
  const Decision decision_;
  const Plan plan_ = initial_plan(job_);
  std::vector<RankSignal> waiting_;
};

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

void check_same(const std::vector<Finding>& a, const std::vector<Finding>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].code);
    CHECK(a[i].code == b[i].code);
    CHECK(a[i].severity == b[i].severity);
    CHECK(a[i].title == b[i].title);
    CHECK(a[i].detail == b[i].detail);
    CHECK(a[i].ranks == b[i].ranks);
    CHECK(same_bits(a[i].cost_seconds.value_or(-1), b[i].cost_seconds.value_or(-1)));
    REQUIRE(a[i].evidence.size() == b[i].evidence.size());
    for (std::size_t e = 0; e < a[i].evidence.size(); ++e)
      CHECK(same_bits(a[i].evidence[e].value, b[i].evidence[e].value));
  }
}

// Returns a noisy seeded run. Every third seed has its own cause.
Ranks made_run(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto noise = [&random] {
    return 0.97 + 0.06 * (static_cast<double>(random() >> 11) * 0x1p-53);
  };
  Ranks ranks(1 + seed % 5);
  const std::size_t steps = 60 + seed * 37 % 700;
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      Step step;
      step.number = s;
      const double slow = seed % 3 == 0 && r + 1 == ranks.size() ? 1.4 : 1;
      step.phases = {static_cast<float>((seed % 4 == 1 ? 0.2 : 0.002) * noise()),
                     static_cast<float>(0.1 * slow * noise()),
                     static_cast<float>(0.2 * slow * noise()),
                     0,
                     static_cast<float>(0.03 * noise()),
                     static_cast<float>(0.01 * noise()),
                     static_cast<float>(0.001 * noise())};
      step.waiting = 0.01 * noise();
      step.recompute = seed % 5 == 2 ? 0.04F : 0;
      step.save = seed % 7 == 1 && r == 0 && s % 20 == 19 ? 0.9F : 0;
      step.loss = seed % 6 == 3 && s > 50 ? std::nan("")
                                          : 4 - 2.0 * static_cast<double>(s) / 700 + 0.01 * noise();
      step.gradient_norm = s % 11 == 0 ? std::nan("") : noise();
      step.is_skipped = seed % 4 == 0 && s % 12 == 5;
      step.loss_scale = seed % 4 == 0 ? 1.0F : 0;
      step.used = (1ull << 30) + (seed % 4 == 2 ? s << 21 : 0);
      step.peak = step.used + (1ull << 27);
      step.limit = seed % 5 == 3 ? step.peak + (1 << 20) : 1ull << 35;
      if (seed % 4 == 3) step.allocator = {3ull << 30, 5ull << 28, 1ull << 30, 1ull << 34};
      ranks[r].push_back(step);
    }
  }
  return ranks;
}

// Returns the steps of a recorded rank, with the fields that a report has.
Steps steps_of(const diagnosis::RankRecord& rank) {
  const auto column = [&rank](const diagnosis::Columns& columns, const char* name) {
    return diagnosis::values_of(columns, name, rank.size());
  };
  const auto numbers = rank.steps.values();
  const auto loss = column(rank.scalars, "loss");
  const auto norm = column(rank.scalars, "grad_norm");
  const auto alloc = column(rank.memory, "alloc");
  Steps out(rank.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    out[s].number = static_cast<std::uint64_t>(numbers[s]);
    out[s].loss = diagnosis::is_absent(loss[s]) ? 0 : loss[s];
    out[s].gradient_norm = norm[s];
    if (alloc[s] > 0) out[s].used = out[s].peak = static_cast<std::uint64_t>(alloc[s]);
  }
  constexpr std::array kNames = {"data", "forward",   "backward", "compute",
                                 "comm", "optimizer", "other"};
  for (std::size_t p = 0; p < kNames.size(); ++p) {
    const auto seconds = column(rank.phases, kNames[p]);
    for (std::size_t s = 0; s < out.size(); ++s) {
      if (!diagnosis::is_absent(seconds[s])) out[s].phases[p] = static_cast<float>(seconds[s]);
    }
  }
  return out;
}

TEST_SUITE("metrics.live_window") {
  TEST_CASE("without a thread findings are looked for when somebody asks, which is told") {
    NoSink end;
    std::vector<Status> told;
    int looks = 0;
    {
      const test::NoThreads none;
      FindingsWatch watch(
          end, [&](FindingsWatch::Found) { ++looks; },
          [&](const Status& trouble) { told.push_back(trouble); });
      watch.record({StepSignals{}, Decision{}, initial_plan(job_of(1)), job_of(1), {}});
      watch.finish();
    }
    REQUIRE(told.size() == 1);
    CHECK(told[0].message().starts_with("findings: its thread could not be started: "));
    CHECK(looks <= 1);
  }

  TEST_CASE("live equals after: 20 seeded runs through telemetry and through run directories") {
    std::size_t found = 0;
    std::ptrdiff_t fragmented = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      const Ranks ranks = made_run(seed);
      const FindingsView view = live(ranks);
      const std::size_t window = window_rounds(ranks.size());
      check_same(view.findings, afterwards(ranks, window));
      CHECK(view.last_step == static_cast<std::int64_t>(ranks[0].size()) - 1);
      CHECK(view.steps <= window);
      found += view.findings.size();
      fragmented += std::ranges::count(view.findings, "MEMORY.FRAGMENTATION", &Finding::code);
    }
    CHECK(found >= 20);
    CHECK(fragmented == 5);  // every fourth seed trains on devices
  }

  TEST_CASE("live equals after: the recorded runs") {
    std::size_t runs = 0;
    for (const auto& entry :
         fs::directory_iterator(fs::path(COX_TEST_DATA) / "training-runs/runs")) {
      const auto run = io::read_run(entry.path());
      REQUIRE(run.ok());
      Ranks ranks;
      for (const diagnosis::RankRecord& rank : run->ranks) ranks.push_back(steps_of(rank));
      const bool is_even = std::ranges::all_of(
          ranks, [&ranks](const Steps& steps) { return steps.size() == ranks[0].size(); });
      if (!is_even) continue;
      CAPTURE(entry.path().filename().string());
      check_same(live(ranks).findings, afterwards(ranks, window_rounds(ranks.size())));
      ++runs;
    }
    CHECK(runs >= 15);
  }

  TEST_CASE("a window holds the newest steps, and fewer of many ranks") {
    CHECK(window_rounds(1) == 512);
    CHECK(window_rounds(128) == 512);
    CHECK(window_rounds(1024) == 64);
    CHECK(window_rounds(1u << 20) == 32);
  }

  TEST_CASE("blocks of a row are counted in the plan that the rank applied") {
    JobFacts job = job_of(2);
    job.blocks = {"a", "b", "c"};
    Plan plan = initial_plan(job);
    plan.id.number = 1;
    plan.precision = {Precision::fp32, Precision::bf16, Precision::bf16};
    plan.profiles = {{MemoryAction::keep, MemoryAction::recompute, MemoryAction::offload},
                     {MemoryAction::tile, MemoryAction::recompute, MemoryAction::recompute}};
    plan.rank_profile = {ProfileId(0), ProfileId(1)};
    RoundShelf shelf;
    const Decision decision;
    StepSignals signals;
    signals.reports = {report_of(step_at(3), 0), report_of(step_at(3), 1)};
    for (RankSignal& report : signals.reports) report.plan_applied = 1;
    REQUIRE(shelf.round_of({signals, decision, plan, job, {}}) != nullptr);
    Plan newer = plan;
    newer.id.number = 2;  // published, but not applied yet
    newer.profiles = {{MemoryAction::keep, MemoryAction::keep, MemoryAction::keep}};
    newer.rank_profile.clear();
    const auto round = shelf.round_of({signals, decision, newer, job, {}});
    REQUIRE(round->plan != nullptr);
    const StepRow first = row_of(round->reports[0], round->plan.get(), round->now);
    CHECK(first.recomputed_blocks == 1);
    CHECK(first.offloaded_blocks == 1);
    CHECK(first.tiled_blocks == 0);
    CHECK(first.precision_blocks[static_cast<std::size_t>(Precision::bf16)] == 2);
    const StepRow second = row_of(round->reports[1], round->plan.get(), round->now);
    CHECK(second.recomputed_blocks == 2);
    CHECK(second.tiled_blocks == 1);
  }

  TEST_CASE("a row has the newest evidence of its rank's allocator, also from a warm-up step") {
    RoundShelf shelf;
    const JobFacts job = job_of(3);
    const Plan plan = initial_plan(job);
    const Decision decision;
    StepSignals signals;
    for (std::size_t r = 0; r < 3; ++r) signals.reports.push_back(report_of(step_at(1), r));
    signals.reports[1].fragment = make_fragment(AllocatorEvidence{100, 60, 40, 7});
    signals.reports[1].rounds = 0;
    REQUIRE(shelf.round_of({signals, decision, plan, job, {}})->reports.size() == 2);
    signals.reports[1].rounds = 1;
    signals.reports[1].memory_used_bytes = 50;
    signals.reports[1].memory_peak_bytes = 120;
    signals.reports[1].fragment = make_fragment(BlockProfile{.blocks = 1});
    const auto round = shelf.round_of({signals, decision, plan, job, {}});
    const StepRow row = row_of(round->reports[1], nullptr, {});
    CHECK(row.allocator == AllocatorEvidence{100, 60, 40, 7});
    CHECK(row.memory_reserved_bytes == 100);
    CHECK(row.memory_peak_reserved_bytes == 120);
    // A row has no memory fields for a rank that sent no evidence.
    for (const std::size_t r : {0u, 2u})
      CHECK(row_of(round->reports[r], nullptr, {}).memory_reserved_bytes == 0);
  }

  TEST_CASE("evidence that does not read claims nothing") {
    RankSignal report = report_of(step_at(1), 0);
    report.memory_used_bytes = 50;
    report.fragment = make_fragment(AllocatorEvidence{100, 101, 0, 0});
    CHECK(row_of(report, nullptr, {}).memory_reserved_bytes == 0);
  }

  TEST_CASE("reports without times, and last ones, are no steps") {
    RoundShelf shelf;
    const JobFacts job = job_of(1);
    const Plan plan = initial_plan(job);
    const Decision decision;
    StepSignals signals;
    signals.reports = {report_of(step_at(1), 0)};
    signals.reports[0].rounds = 0;
    CHECK(shelf.round_of({signals, decision, plan, job, {}}) == nullptr);
    signals.reports[0].rounds = 1;
    signals.reports[0].set(SignalFlag::finished);
    CHECK(shelf.round_of({signals, decision, plan, job, {}}) == nullptr);
  }

  TEST_CASE("a report that covers several steps is one row with their mean") {
    RankSignal report = report_of(step_at(9), 0);
    report.save_seconds = 3;
    report.phase_seconds[1] = 2;
    report.rounds = 4;
    const StepRow row = row_of(report, nullptr, {});
    CHECK(row.phase_seconds[1] == 0.5F);
    CHECK(row.save_seconds == 0.75F);
  }

  TEST_CASE("steps that reports brought late, several at once, cost what they took") {
    constexpr std::size_t kSteps = 120;
    constexpr std::size_t kWithTheEnd = 5;  // sent with the ranks' last reports
    const Ranks ranks = half_slow_run(kSteps);
    NoSink end;
    FindingsWatch watch(end, [](FindingsWatch::Found) {});
    LateRanks late(watch, ranks.size());
    for (std::size_t s = 0; s < kSteps; ++s) {
      for (std::size_t r = 0; r < ranks.size(); ++r) late.add(report_of(ranks[r][s], r));
      if (s + kWithTheEnd < kSteps && s % 7 > 1) late.send();
    }
    const double before = watch.look()->wall_seconds;
    for (std::size_t r = 0; r < ranks.size(); ++r) late.add(last_report(r, kSteps - 1));
    late.send();
    const FindingsView found = *watch.look();
    CHECK(found.steps == kSteps);
    CHECK(found.last_step == static_cast<std::int64_t>(kSteps) - 1);
    double wall = 0;
    for (const Step& step : ranks[1]) {
      for (const float seconds : step.phases) wall += static_cast<double>(seconds);
    }
    CHECK(found.wall_seconds == doctest::Approx(wall).epsilon(1e-4));
    CHECK(found.wall_seconds - before ==
          doctest::Approx(kWithTheEnd * wall / kSteps).epsilon(0.05));
    const std::vector<Finding> after = afterwards(ranks, kSteps);
    REQUIRE_FALSE(after.empty());
    REQUIRE(found.findings.size() == after.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      CHECK(found.findings[i].code == after[i].code);
      CHECK(found.findings[i].cost_seconds.value_or(0) ==
            doctest::Approx(after[i].cost_seconds.value_or(0)).epsilon(0.02));
    }
  }

  TEST_CASE("a rank that reported in few rounds does not empty the window, and is told") {
    LiveRounds rounds;
    for (std::uint64_t s = 0; s < 30; ++s) {
      auto round = std::make_shared<LiveRound>();
      round->reports.push_back(report_of(step_at(s), 0));
      if (s < 3) round->reports.push_back(report_of(step_at(s), 1));
      rounds.push_back(round);
    }
    const diagnosis::RunRecord run = record_of(rounds, {});
    CHECK(run.ranks.size() == 1);
    REQUIRE(run.gaps.size() == 1);
    CHECK(run.gaps[0] == "rank 1: left out, with 3 of 30 steps");
  }

  TEST_CASE("ranks are on the machines that the job has them on, by the lowest rank of each") {
    const auto round = std::make_shared<LiveRound>();
    for (std::int32_t r = 0; r < 4; ++r) round->reports.push_back(report_of(step_at(0), r));
    const auto nodes = [&](std::vector<NodeId> node_of_rank) {
      std::vector<std::int32_t> out;
      const LiveRounds rounds = {round};
      for (const auto& rank : record_of(rounds, {{}, std::move(node_of_rank), {}}).ranks)
        out.push_back(rank.info.node);
      return out;
    };
    CHECK(nodes({}) == std::vector<std::int32_t>{0, 0, 0, 0});
    CHECK(nodes({NodeId(7), NodeId(9), NodeId(7), NodeId(9)}) ==
          std::vector<std::int32_t>{0, 1, 0, 1});
    CHECK(nodes({NodeId(7), NodeId(7)}) == std::vector<std::int32_t>{0, 0, -1, -1});
  }

  TEST_CASE("the smallest loss scale is that of the plan, as the settings have it afterwards") {
    Plan plan = initial_plan(job_of(1));
    plan.scaler.min_scale = 128;
    const auto in_force = std::make_shared<const Plan>(plan);
    LiveRounds rounds;
    for (std::uint64_t s = 0; s < 40; ++s) {
      Step step = step_at(s);
      step.phases = {0.01F, 0.1F, 0.2F};
      step.loss = 4 - 0.05 * static_cast<double>(s);
      step.loss_scale = 128;
      step.is_skipped = s % 10 == 5;
      auto round = std::make_shared<LiveRound>();
      round->reports.push_back(report_of(step, 0));
      round->plan = in_force;
      rounds.push_back(round);
    }
    const std::vector<Finding> found = findings_of(rounds, {}).findings;
    REQUIRE(std::ranges::count(found, "PRECISION.SCALE_AT_FLOOR", &Finding::code) == 1);
    CHECK(found.front().suggestion.starts_with("Lower loss_scale.min"));
  }

  TEST_CASE("times that cannot be are found, not believed, and cost no more than a look") {
    Ranks ranks = made_run(3);
    ranks[0][20].phases[1] = std::numeric_limits<float>::infinity();
    ranks[0][21].phases[1] = -1;
    const FindingsView view = live(ranks);
    CHECK(std::ranges::count(view.findings, "RECORD.IMPOSSIBLE", &Finding::code) == 1);
  }

  TEST_CASE("nothing to look at is an empty view") {
    CHECK(findings_of({}, {}).findings.empty());
  }
}

}  // namespace
}  // namespace cox::metrics
