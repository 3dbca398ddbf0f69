// HostSample: one sample of a rank's process and its machine, taken some times a second, for the
// host timeline of a run (docs/traces.md). Times of computing and transferred bytes are sums since
// the start of the process or the machine, so a lost sample falsifies no other. Plain values.
//
//   /proc, /sys -> HostRecorder (sdk) -> HostSample -> host.jsonl (records/host_lines.h)
//                                     -> timeline/idle_time.h, tools
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/host_evidence.h"
#include "coordinator/core/stall.h"

namespace cox {

struct GpuSample {
  double busy_ratio = kUnknown;  // of the last moments
  double memory_bytes = kUnknown;
};

// Facts that hold from a process's first sample on.
struct HostStart {
  double started_seconds = kUnknown;  // Unix time of the process's start
  double period_seconds = 0;          // between samples
  std::int32_t node = 0;              // the lowest rank of the node
  double cores = kUnknown;            // available to the node's ranks
  std::int32_t gpus = -1;             // known to NVML; -1: NVML is missing or was not asked
};

struct HostSample {
  double timestamp = 0;  // Unix time
  std::int64_t step = 0;
  Activity activity = Activity::unknown;
  double activity_seconds = kUnknown;  // since the activity began
  double user_seconds = 0;             // of the process, since its start
  double system_seconds = 0;
  double resident_bytes = kUnknown;
  std::optional<NodeCounters> node{};  // of the lowest rank of a node
  std::vector<GpuSample> gpus{};       // of the lowest rank of a node
  std::optional<HostStart> start{};    // of a process's first sample

  double cpu_seconds() const { return user_seconds + system_seconds; }
};

}  // namespace cox
