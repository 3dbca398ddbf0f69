// HostTrack holds the samples of a rank's host timeline for the analysis of idle time. Plain
// values.
//
//   host.jsonl (records/host_lines.h) -> HostTrack of each rank -> timeline/idle_time.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/stall.h"

namespace cox::diagnosis {

struct TrackSample {
  double seconds = 0;      // Unix time
  double cpu_seconds = 0;  // used by the process since it began
  double since = 0;        // Unix time at which the activity began
  std::int64_t step = 0;
  Activity activity = Activity::unknown;
};

// One process of a rank. A resumed run has several, one after another.
struct HostTrackStart {
  std::size_t first = 0;       // index of the process's first sample
  double started_seconds = 0;  // Unix time; the first sample's if unknown
  std::int32_t node = 0;       // lowest rank of the node
};

struct HostTrack {
  std::int32_t rank = 0;
  std::vector<HostTrackStart> starts;  // ascending; the first begins at 0
  std::vector<TrackSample> samples;    // ascending times within a start
};

}  // namespace cox::diagnosis
