// HostSample: what one look at a rank's process and its machine finds, some times a second, for the
// host timeline of a run (docs/traces.md).
//
//   /proc, /sys -> HostRecorder (sdk) -> HostSample -> host.jsonl (records/host_lines.h)
//                                     -> timeline/idle_time.h, tools
//
// Times of computing and bytes that moved are sums since the process or the machine began, so that
// a sample that is lost or left out falsifies none beside it. Plain values.
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
