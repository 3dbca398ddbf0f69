#include <unistd.h>

#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"

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

HostFacts on_device(const char* name, std::uint64_t gibibytes) {
  HostFacts facts = host("a");
  facts.cuda_devices = 2;
  std::strcpy(facts.device, name);
  facts.device_bytes = gibibytes << 30;
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

// A machine of the test's own: paths and their texts.
using Files = std::map<std::string, std::string>;
constexpr std::uint64_t kKib = 1024;

std::uint64_t page_bytes() {
  return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

Files with(Files files, const Files& more) {
  files.insert({"/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:\t900 kB\n"});
  files.insert(more.begin(), more.end());
  return files;
}

struct GroupCase {
  const char* name;
  Files files;
  std::uint64_t limit_kib;
  std::uint64_t free_kib;
};

std::vector<GroupCase> group_cases() {
  const std::string inner = "/sys/fs/cgroup/jobs/one/";
  const std::string outer = "/sys/fs/cgroup/jobs/";
  const Files v2 = {{"/proc/self/cgroup", "0::/jobs/one\n"},
                    {"/proc/self/mountinfo",
                     "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - "
                     "cgroup2 cgroup2 rw,nsdelegate\n"}};
  const Files v1 = {{"/proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/jobs/one\n0::/y\n"},
                    {"/proc/self/mountinfo",
                     "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                     "36 24 0:32 / /m rw,nosuid - cgroup cgroup rw,memory\nnonsense\n"}};
  const Files container = {
      {"/proc/self/cgroup", "5:memory:/docker/abc\n"},
      {"/proc/self/mountinfo", "36 24 0:32 /docker/abc /m ro - cgroup cgroup ro,memory\n"}};
  const Files outside = {{"/proc/self/cgroup", "0::/../other\n"},
                         {"/proc/self/mountinfo", v2.at("/proc/self/mountinfo")}};
  return {
      {"no limit", with(v2, {{inner + "memory.max", "max\n"}}), 1000, 900},
      {"the own group",
       with(v2, {{inner + "memory.max", "409600\n"}, {inner + "memory.current", "307200\n"}}), 400,
       100},
      {"files that would be dropped are free",
       with(v2, {{inner + "memory.max", "409600\n"},
                 {inner + "memory.current", "307200\n"},
                 {inner + "memory.stat", "anon 1\ninactive_file 204800\nactive_file 7\n"}}),
       400, 300},
      {"the group around it is fuller",
       with(v2, {{inner + "memory.max", "409600\n"},
                 {inner + "memory.current", "102400\n"},
                 {outer + "memory.max", "819200\n"},
                 {outer + "memory.current", "768000\n"}}),
       400, 50},
      {"memory.high",
       with(v2, {{inner + "memory.max", "max\n"},
                 {inner + "memory.high", "204800\n"},
                 {inner + "memory.current", "512000\n"}}),
       200, 0},
      {"version 1",
       with(v1, {{"/m/jobs/one/memory.limit_in_bytes", "409600\n"},
                 {"/m/jobs/one/memory.usage_in_bytes", "307200\n"},
                 {"/m/jobs/one/memory.stat", "inactive_file 1\ntotal_inactive_file 102400\n"},
                 {"/m/jobs/memory.limit_in_bytes", "9223372036854771712\n"}}),
       400, 200},
      {"a container",
       with(container,
            {{"/m/memory.limit_in_bytes", "409600\n"}, {"/m/memory.usage_in_bytes", "307200\n"}}),
       400, 100},
      {"a group outside of what is mounted",
       with(outside, {{"/sys/fs/cgroup/memory.max", "409600\n"},
                      {"/sys/fs/cgroup/memory.current", "1024\n"}}),
       400, 399},
      {"numbers that are none",
       with(v2, {{inner + "memory.max", "-5\n"}, {inner + "memory.current", "many\n"}}), 1000, 900},
  };
}

// `files` must outlive what reads them.
ReadText reading(const Files& files) {
  return [&files](const std::string& path, std::string& text) {
    const auto file = files.find(path);
    text = file == files.end() ? "" : file->second;
  };
}

std::uint64_t limit_of(const Files& files, std::int32_t ranks_on_node) {
  return MemoryProbe({.of_node = ranks_on_node}, NodeMemory(reading(files))).reading().limit_bytes;
}

}  // namespace

TEST_SUITE("memory probe") {
  TEST_CASE("knows what the process uses, within the limit, from the first look on") {
    MemoryProbe probe;
    CHECK(probe.reading().used_bytes == 0);
    probe.look();
    const MemoryReading now = probe.reading();
    CHECK(now.used_bytes > (1u << 20));
    CHECK(now.peak_bytes == now.used_bytes);
    CHECK(now.limit_bytes >= now.used_bytes);
  }

  TEST_CASE("ranks that share a machine have its memory together") {
    const Files machine = {{"/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\n"}};
    CHECK(limit_of(machine, 1) == 1000 * kKib);
    CHECK(limit_of(machine, 4) == 250 * kKib);
    CHECK(limit_of(machine, 0) == 1000 * kKib);
    CHECK(limit_of({}, 1) == 0);
  }

  TEST_CASE("a rank may use what it has and its share of what the machine has free") {
    Files machine = {{"/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 800 kB\n"},
                     {"/proc/self/statm", "500 100 20 1 0 30 0\n"}};
    const std::uint64_t resident = 100 * page_bytes();
    CHECK(limit_of(machine, 1) == resident + 800 * kKib);
    CHECK(limit_of(machine, 4) == resident + 200 * kKib);
    machine["/proc/meminfo"] = "MemTotal: 600 kB\nMemAvailable: 590 kB\n";
    CHECK(limit_of(machine, 2) == 300 * kKib);  // never more than its part of the whole
    machine.erase("/proc/self/statm");
    CHECK(limit_of(machine, 2) == 300 * kKib);
  }

  TEST_CASE("what is free is looked at anew, and the headroom follows") {
    Files machine = {{"/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 8000 kB\n"},
                     {"/proc/self/statm", "500 100 20 1 0 30 0\n"}};
    MemoryProbe probe({.of_node = 2}, NodeMemory(reading(machine)));
    const std::uint64_t resident = 100 * page_bytes();
    CHECK(probe.reading().limit_bytes == resident + 4000 * kKib);
    machine["/proc/meminfo"] = "MemTotal: 1000000 kB\nMemAvailable: 40 kB\n";
    probe.look_around();
    probe.look();
    const MemoryReading now = probe.reading();
    CHECK(now.limit_bytes - now.peak_bytes == 20 * kKib);
    RankSignal signal;
    probe.sign(signal);
    CHECK(signal.memory_limit_bytes == resident + 20 * kKib);
  }

  TEST_CASE("the control groups around a process limit it, in both versions") {
    for (const GroupCase& each : group_cases()) {
      CAPTURE(each.name);
      const NodeReading found = NodeMemory(reading(each.files)).look();
      CHECK(found.limit_bytes == each.limit_kib * kKib);
      CHECK(found.free_bytes == each.free_kib * kKib);
    }
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

  TEST_CASE("the device that all ranks train on is named with its memory") {
    const auto lines = summary_lines({on_device("Fast Device", 80), on_device("Fast Device", 80)});
    REQUIRE(lines.size() == 3);
    CHECK(lines[2] == "all ranks train on Fast Device, 80.0 GiB");
    CHECK(summary_lines({on_device("Fast Device", 0)}).at(2) == "all ranks train on Fast Device");
  }

  TEST_CASE("devices that differ, in their memory alone, too, are named with their ranks") {
    const auto fast = on_device("Fast Device", 80);
    const auto lines = summary_lines({fast, on_device("Slow Device", 16), fast,
                                      on_device("Fast Device", 40), on_device("Slow Device", 16)});
    REQUIRE(lines.size() == 6);
    CHECK(lines[1].starts_with("all ranks alike: "));
    CHECK(lines[2] ==
          "the ranks' devices differ, so numbers may differ in the last bit and speeds will:");
    CHECK(lines[3] == "ranks 0, 2: Fast Device, 80.0 GiB");
    CHECK(lines[4] == "ranks 1, 4: Slow Device, 16.0 GiB");
    CHECK(lines[5] == "rank 3: Fast Device, 40.0 GiB");
  }

  TEST_CASE("devices of many kinds still get a short summary") {
    std::vector<HostFacts> hosts;
    for (std::uint64_t i = 0; i < 2000; ++i) hosts.push_back(on_device("Device", 1 + i));
    const auto lines = summary_lines(hosts);
    CHECK(lines.size() == 11);
    for (const std::string& line : lines) CHECK(line.size() < 300);
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
