#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "sdk/src/memory/memory_probe.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

// A made-up machine: paths and their texts.
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

// REQUIRES: `files` outlives the reader.
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
    CHECK(limit_of(machine, 2) == 300 * kKib);  // at most its part of the whole
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
      CHECK(probe.reading().used_bytes == before);  // the probe skips this step
      for (std::uint64_t i = 2; i <= MemoryProbe::kEverySteps; ++i) probe.look();
      CHECK(probe.reading().used_bytes > before + kBytes / 2);
      CHECK(grown.back() == 1);
    }
    const std::uint64_t peak = probe.reading().peak_bytes;
    for (std::uint64_t i = 0; i < MemoryProbe::kEverySteps; ++i) probe.look();
#ifndef __SANITIZE_ADDRESS__  // keeps freed memory for a while
    CHECK(probe.reading().used_bytes < peak);
    CHECK(probe.reading().peak_bytes == peak);
#endif
  }
}
