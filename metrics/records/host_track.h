// HostTrack: the samples of a rank's host timeline, as the analysis of idle time reads them. Plain
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
  double cpu_seconds = 0;  // of the process, since it began
  double since = 0;        // Unix time at which the activity began
  std::int64_t step = 0;
  Activity activity = Activity::unknown;
};

// One process of a rank: a resumed run has several one after another.
struct HostTrackStart {
  std::size_t first = 0;       // of its samples
  double started_seconds = 0;  // Unix time; that of the first sample where it is not known
  std::int32_t node = 0;       // the lowest rank of its node
};

struct HostTrack {
  std::int32_t rank = 0;
  std::vector<HostTrackStart> starts;  // ascending; the first begins at 0
  std::vector<TrackSample> samples;    // ascending times within a start
};

}  // namespace cox::diagnosis
