// What the texts of a machine's own accounts (/proc, /sys) say of its state: HostTexts ->
// HostReading
// -> HostEvidence (signal.h), from two readings that are seconds apart. Texts are hostile: what is
// missing, odd or out of range is not known, and nothing else suffers. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/signal.h"

namespace cox {

// HostTexts are the contents of files; empty = it cannot be read.
struct HostTexts {
  std::string stat;             // /proc/stat
  std::string loadavg;          // /proc/loadavg
  std::string cpuinfo;          // /proc/cpuinfo
  std::string clock;            // .../cpu0/cpufreq/scaling_cur_freq, kHz
  std::string largest_clock;    // .../cpu0/cpufreq/cpuinfo_max_freq, kHz
  std::string cpu_pressure;     // /proc/pressure/cpu
  std::string memory_pressure;  // /proc/pressure/memory
  std::string io_pressure;      // /proc/pressure/io
  std::string group_cpu;        // cpu.stat of the process's control group, v1 or v2
};

struct HostReading {
  struct Share {
    std::uint64_t part = 0;
    std::uint64_t whole = 0;
  };
  std::optional<Share> steal;      // clock ticks of all cores since the machine's start
  std::optional<Share> throttled;  // periods of the control group
  std::optional<double> load;
  std::optional<double> clock_ratio;
  std::optional<double> cpu_pressure, memory_pressure, io_pressure;  // ratios
};

HostReading read_host(const HostTexts& texts);

// Returns what is known after `now`; `cores` > 0. Shares need both readings, and counters that did
// not go backwards.
HostEvidence evidence_between(const HostReading& before, const HostReading& now,
                              std::string_view host, std::int32_t cores);

// Returns whether one differs from the other by more than the flicker of an ordinary machine.
bool differs_noticeably(const HostEvidence& a, const HostEvidence& b);

// Returns the files that may hold the control group's CPU account, likeliest first, by the text of
// /proc/self/cgroup. Without a leading root.
std::vector<std::string> group_cpu_files(std::string_view own_groups);

}  // namespace cox
