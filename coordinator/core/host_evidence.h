// What the texts of a machine's own accounts (/proc, /sys) say of its state.
//
//   HostTexts -> HostReading -> HostEvidence (signal.h), from two readings that are seconds apart
//   NodeTexts -> NodeCounters, for the host timeline (host_sample.h)
//
// Texts are hostile: what is missing, odd or out of range is not known, and nothing else suffers.
// Pure; any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
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

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
inline bool is_known(double value) {
  return !std::isnan(value);
}

// The contents of files; empty = it cannot be read. Those of the control group are of version 2.
struct NodeTexts {
  std::string stat;          // /proc/stat
  std::string meminfo;       // /proc/meminfo
  std::string diskstats;     // /proc/diskstats
  std::string net_dev;       // /proc/net/dev
  std::string group_memory;  // memory.current
  std::string group_limit;   // memory.max
};

// kUnknown: the machine does not tell.
struct NodeCounters {
  double user_seconds = kUnknown;  // of all cores, like the next three
  double system_seconds = kUnknown;
  double iowait_seconds = kUnknown;
  double steal_seconds = kUnknown;
  double memory_used_bytes = kUnknown;  // within the control group's limit, where it has one
  double memory_available_bytes = kUnknown;
  double swap_used_bytes = kUnknown;
  double disk_read_bytes = kUnknown;  // of whole disks
  double disk_written_bytes = kUnknown;
  double network_received_bytes = kUnknown;  // of all devices but loopback
  double network_sent_bytes = kUnknown;
};

// REQUIRES: ticks_per_second > 0.
NodeCounters read_node(const NodeTexts& texts, double ticks_per_second);

// The cores that cpu.max of a control group grants; kUnknown where it sets no limit.
double granted_cores(std::string_view cpu_max);

// The files of the process's control group (version 2) with that name, likeliest first, by the text
// of /proc/self/cgroup. Without a leading root.
std::vector<std::string> group_files(std::string_view own_groups, std::string_view name);

// The twenty-second field of /proc/self/stat: ticks from the machine's start to the process's.
std::optional<std::uint64_t> start_ticks_in(std::string_view stat_line);

}  // namespace cox
