// HostSample: what one look at a rank's process and its machine finds, some times a second, for the
// host timeline of a run (docs/traces.md).
//
//   /proc, /sys -> HostRecorder (sdk) -> HostSample -> host.jsonl (io/host_lines.h)
//                                     -> diagnosis/idle_time.h, tools
//
// Times of computing and bytes that moved are sums since the process or the machine began, so that
// a sample that is lost or left out falsifies none beside it. Texts are hostile: what is missing or
// odd is not known, and nothing else suffers. Pure; any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/stall.h"

namespace cox {

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

struct GpuSample {
  double busy_ratio = kUnknown;  // of the last moments
  double memory_bytes = kUnknown;
};

// What holds from a process's first sample on.
struct HostStart {
  double started_seconds = kUnknown;  // Unix time of the process's start
  double period_seconds = 0;          // between samples
  std::int32_t node = 0;              // the lowest rank of the node
  double cores = kUnknown;            // that the node's ranks may use
  std::int32_t gpus = -1;             // that NVML knows; -1: nobody looked, or there is no NVML
};

struct HostSample {
  double timestamp = 0;  // Unix time
  std::int64_t step = 0;
  Activity activity = Activity::unknown;
  double activity_seconds = kUnknown;  // since it began
  double user_seconds = 0;             // of the process, since it began
  double system_seconds = 0;
  double resident_bytes = kUnknown;
  std::optional<NodeCounters> node{};  // of the lowest rank of a node
  std::vector<GpuSample> gpus{};       // likewise
  std::optional<HostStart> start{};    // of the first sample of a process

  double cpu_seconds() const { return user_seconds + system_seconds; }
};

}  // namespace cox
