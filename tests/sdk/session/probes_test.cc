#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/run_tally.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

HostFacts host(const char* name, std::int32_t cores = 8, std::int32_t threads = 4) {
  HostFacts facts;
  std::strcpy(facts.host, name);
  std::strcpy(facts.processor, "Fast Processor");
  facts.memory_bytes = 64ull << 30;
  facts.cores = cores;
  facts.threads = threads;
  return facts;
}

struct Round {
  StepSignals signals;
  Decision decision;
  Plan plan;
  JobFacts job;
  ControlCounters counters;

  void report(std::int32_t rank, Phase phase, float seconds) {
    RankSignal signal;
    signal.rank = RankId(rank);
    signal.phase_seconds[static_cast<std::size_t>(phase)] = seconds;
    signals.reports.push_back(signal);
  }
  StepRecord record() const { return {signals, decision, plan, job, counters}; }
};

struct CountingSink final : StepSink {
  int records = 0;
  void record(const StepRecord&) override { ++records; }
};

}  // namespace

TEST_SUITE("memory probe") {
  TEST_CASE("knows what the process uses, within the limit, from the first look on") {
    MemoryProbe probe;
    CHECK(probe.reading().used_bytes == 0);
    probe.look();
    const MemoryReading reading = probe.reading();
    CHECK(reading.used_bytes > (1u << 20));
    CHECK(reading.peak_bytes == reading.used_bytes);
    CHECK(reading.limit_bytes >= reading.used_bytes);
  }

  TEST_CASE("ranks that share a machine have its memory together") {
    const std::uint64_t alone = MemoryProbe().reading().limit_bytes;
    REQUIRE(alone > 0);
    CHECK(MemoryProbe(4).reading().limit_bytes == alone / 4);
    CHECK(MemoryProbe(0).reading().limit_bytes == alone);
  }

  TEST_CASE("sees growth at its next look, and the peak stays when memory is given back") {
    MemoryProbe probe;
    probe.look();
    const std::uint64_t before = probe.reading().used_bytes;
    constexpr std::size_t kBytes = 64u << 20;
    {
      std::vector<char> grown(kBytes, 1);
      probe.look();
      CHECK(probe.reading().used_bytes == before);  // not a step to look in
      for (std::uint64_t i = 2; i <= MemoryProbe::kEverySteps; ++i) probe.look();
      CHECK(probe.reading().used_bytes > before + kBytes / 2);
      CHECK(grown.back() == 1);
    }
    const std::uint64_t peak = probe.reading().peak_bytes;
    for (std::uint64_t i = 0; i < MemoryProbe::kEverySteps; ++i) probe.look();
    CHECK(probe.reading().used_bytes < peak);
    CHECK(probe.reading().peak_bytes == peak);
  }
}

TEST_SUITE("run tally") {
  TEST_CASE("names the rank that worked longest over the whole run and where it lost most") {
    RunTally tally(3, nullptr);
    for (int i = 0; i < 4; ++i) {
      Round round;
      round.report(0, Phase::forward, 1);
      round.report(1, Phase::forward, 1.1f);
      round.report(1, Phase::data, 0.9f);
      round.report(2, Phase::forward, 1.5f);
      round.counters.rounds = static_cast<std::uint64_t>(i) + 1;
      round.counters.plans_published = 2;
      tally.record(round.record());
    }
    const SessionReport report = tally.report();
    CHECK(report.rounds == 4);
    CHECK(report.plans == 2);
    CHECK(report.slowest_rank == 1);
    CHECK(report.slowest_phase == Phase::data);
    CHECK(report.slowdown_ratio == doctest::Approx(2.0));
  }

  TEST_CASE("time spent waiting for others makes nobody slow") {
    RunTally tally(2, nullptr);
    Round round;
    round.report(0, Phase::communication, 9);
    round.report(0, Phase::backward, 1);
    round.report(1, Phase::backward, 2);
    tally.record(round.record());
    CHECK(tally.report().slowest_rank == 1);
    CHECK(tally.report().slowest_phase == Phase::backward);
  }

  TEST_CASE("a single rank is its own slowest, in the phase that took longest") {
    RunTally tally(1, nullptr);
    Round round;
    round.report(0, Phase::forward, 1);
    round.report(0, Phase::backward, 3);
    tally.record(round.record());
    CHECK(tally.report().slowdown_ratio == 1);
    CHECK(tally.report().slowest_phase == Phase::backward);
  }

  TEST_CASE("says what the newest plan of memory saves on one rank, and the time that it adds") {
    RunTally tally(2, nullptr);
    Round round;
    round.job.world_size = 2;
    round.job.blocks = {"a"};
    const std::vector<MemoryAction> keep = {MemoryAction::keep};
    const std::vector<MemoryAction> recompute = {MemoryAction::recompute};
    round.job.memory.models = {{{{100, 250, recompute}, {180, 0, keep}}, 50, 1000, {80}}};
    round.plan.profiles = {keep, recompute};
    round.plan.rank_profile = {ProfileId(0), ProfileId(0)};
    tally.record(round.record());
    CHECK(tally.report().memory_planned);
    CHECK(tally.report().memory_peak_bytes == 180);
    CHECK(tally.report().memory_saved_bytes == 0);
    CHECK(tally.report().memory_added_ratio == 0);
    round.plan.id.number = 1;
    round.plan.rank_profile = {ProfileId(0), ProfileId(1)};
    tally.record(round.record());
    CHECK(tally.report().memory_peak_bytes == 180);
    CHECK(tally.report().memory_saved_bytes == 80);
    CHECK(tally.report().memory_added_ratio == doctest::Approx(0.25));
  }

  TEST_CASE("a price makes a cost of the time since the start, and of the time a plan adds") {
    RunTally tally(2, nullptr, {UnixTime{1000}, 3.0});
    Round round;
    round.job.world_size = 2;
    round.job.blocks = {"a"};
    const std::vector<MemoryAction> recompute = {MemoryAction::recompute};
    round.job.memory.models = {{{{100, 250, recompute}}, 50, 1000, {80}}};
    round.plan.profiles = {recompute};
    round.signals.now = UnixTime{1000 + 1800};
    tally.record(round.record());
    CHECK(tally.report().cost == doctest::Approx(3.0));  // two devices for half an hour
    CHECK(tally.report().memory_cost_hourly == doctest::Approx(6.0 * 0.2));
    round.signals.now = UnixTime{10};  // a clock that went back
    tally.record(round.record());
    CHECK(tally.report().cost == doctest::Approx(3.0));
  }

  TEST_CASE("nothing recorded is nothing reported") {
    const SessionReport report = RunTally(4, nullptr).report();
    CHECK(report.rounds == 0);
    CHECK(report.slowdown_ratio == 1);
    CHECK(report.last_reason.empty());
    CHECK_FALSE(report.memory_planned);
    CHECK(report.cost == 0);
  }

  TEST_CASE("counts reasons, keeps the last, and hands every record on") {
    CountingSink next;
    RunTally tally(1, &next);
    for (const char* text : {"first", "second"}) {
      Round round;
      Reason reason;
      reason.text = text;
      round.decision.reasons = {reason};
      tally.record(round.record());
    }
    CHECK(tally.report().decisions == 2);
    CHECK(tally.report().last_reason == "second");
    CHECK(next.records == 2);
  }
}

TEST_SUITE("start-up summary") {
  TEST_CASE("a job of one rank is summed up in two lines") {
    const auto lines = summary_lines({host("node-a")});
    REQUIRE(lines.size() == 2);
    CHECK(lines[0] == "1 rank on 1 host (node-a: 1)");
    CHECK(lines[1] ==
          "all ranks alike: Fast Processor, 8 cores, 64.0 GiB, no GPU, 4 threads a rank");
  }

  TEST_CASE("hosts are counted and sorted by name") {
    const auto lines = summary_lines({host("b"), host("a"), host("b")});
    CHECK(lines[0] == "3 ranks on 2 hosts (a: 1, b: 2)");
    CHECK(lines.size() == 2);
  }

  TEST_CASE("ranks that differ are shown, one line for each kind with the first rank of it") {
    const auto lines = summary_lines({host("a"), host("a", 4), host("b"), host("b", 4)});
    REQUIRE(lines.size() == 4);
    CHECK(lines[1].starts_with("ranks differ"));
    CHECK(lines[2].starts_with("rank 0: Fast Processor, 8 cores"));
    CHECK(lines[3].starts_with("rank 1: Fast Processor, 4 cores"));
  }

  TEST_CASE("another number of threads or devices is a difference") {
    CHECK(summary_lines({host("a", 8, 1), host("a", 8, 2)}).size() == 4);
    HostFacts with_devices = host("b");
    with_devices.cuda_devices = 2;
    const auto lines = summary_lines({host("a"), with_devices});
    REQUIRE(lines.size() == 4);
    CHECK(lines[3] ==
          "rank 1: Fast Processor, 8 cores, 64.0 GiB, 2 CUDA devices, 4 threads a rank");
  }

  TEST_CASE("a large job still gets a short summary") {
    std::vector<HostFacts> hosts;
    for (int i = 0; i < 2000; ++i) hosts.push_back(host(("n" + std::to_string(i)).c_str(), 1 + i));
    const auto lines = summary_lines(hosts);
    CHECK(lines.size() == 10);
    for (const std::string& line : lines) CHECK(line.size() < 300);
  }

  TEST_CASE("this machine describes itself") {
    const HostFacts facts = this_host();
    CHECK(std::strlen(facts.host) > 0);
    CHECK(facts.memory_bytes > 0);
    CHECK(facts.cores >= 1);
    CHECK(facts.threads >= 1);
  }
}
