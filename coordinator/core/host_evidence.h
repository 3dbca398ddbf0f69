// Parses a machine's own statistics (/proc, /sys). The texts are untrusted: a missing, odd or
// out-of-range value counts as unknown and affects nothing else. Pure; any thread.
//
//   HostTexts -> HostReading -> HostEvidence (signal.h), from two readings that are seconds apart
//   NodeTexts -> NodeCounters, for the host timeline (host_sample.h)
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

// HostTexts are the contents of files; empty = unreadable.
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

// Returns the evidence after `now`; `cores` > 0. Shares need both readings, and counters that did
// not go backwards.
HostEvidence evidence_between(const HostReading& before, const HostReading& now,
                              std::string_view host, std::int32_t cores);

// Returns whether the evidence differs by more than the usual fluctuation of a machine.
bool differs_noticeably(const HostEvidence& a, const HostEvidence& b);

// Returns the files that may hold the control group's CPU account, likeliest first, from the text
// of /proc/self/cgroup. Without a leading root.
std::vector<std::string> group_cpu_files(std::string_view own_groups);

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
inline bool is_known(double value) {
  return !std::isnan(value);
}

// The contents of files; empty = unreadable. Files of the control group are of version 2.
struct NodeTexts {
  std::string stat;          // /proc/stat
  std::string meminfo;       // /proc/meminfo
  std::string diskstats;     // /proc/diskstats
  std::string net_dev;       // /proc/net/dev
  std::string group_memory;  // memory.current
  std::string group_limit;   // memory.max
};

// kUnknown: the machine does not report the value.
struct NodeCounters {
  double user_seconds = kUnknown;  // of all cores, like the next three
  double system_seconds = kUnknown;
  double iowait_seconds = kUnknown;
  double steal_seconds = kUnknown;
  double memory_used_bytes = kUnknown;  // within the control group's limit, if there is one
  double memory_available_bytes = kUnknown;
  double swap_used_bytes = kUnknown;
  double disk_read_bytes = kUnknown;  // of whole disks
  double disk_written_bytes = kUnknown;
  double network_received_bytes = kUnknown;  // of all devices except loopback
  double network_sent_bytes = kUnknown;
};

// Parses a node's counters. REQUIRES: ticks_per_second > 0.
NodeCounters read_node(const NodeTexts& texts, double ticks_per_second);

// Returns the cores that cpu.max of a control group grants; kUnknown = no limit.
double granted_cores(std::string_view cpu_max);

// Returns the files of the process's control group (version 2) with the name `name`, likeliest
// first, from the text of /proc/self/cgroup. Without a leading root.
std::vector<std::string> group_files(std::string_view own_groups, std::string_view name);

// Returns field 22 of /proc/self/stat: ticks from the machine's start to the process's.
std::optional<std::uint64_t> start_ticks_in(std::string_view stat_line);

}  // namespace cox
