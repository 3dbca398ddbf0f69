// Explains why the ranks of a run were idle. Each stretch between two samples of the host timeline
// in which a rank waited, or neither computed nor used its cores, is booked on a cause. Pure; any
// thread.
//
//   host.jsonl (records/host_lines.h) -> HostTrack of each rank -> idle_time_of() -> IdleTime
//
// The start of the second sample's activity splits a stretch: before it, the rank did what the
// first sample shows. All ranks sample at the same moments (multiples of the period, by each node's
// clock), so the samples show what the others did while a rank waited. The rank waited for those
// that did not wait; if these saved or evaluated, that is the cause.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/records/host_track.h"

namespace cox::diagnosis {

enum class IdleCause : std::uint8_t {
  startup,           // from the process's start to its first step
  epoch_boundary,    // between the last step of an epoch and the next one's first
  save,              // on this rank, or on ranks that this rank waited for
  evaluation,        // likewise
  averaging,         // all ranks were in a call of all ranks
  data,              // in the phase of that name, without computing
  waiting_for_rank,  // for a rank that still worked
  unexplained,
};
inline constexpr std::size_t kIdleCauses = 8;
std::string_view to_string(IdleCause cause);  // "epoch boundary", for people
std::string_view key_of(IdleCause cause);     // "epoch_boundary", for JSON

// A process below this share of one core counts as idle for the whole stretch. Above it, the
// stretch minus its CPU time counts.
inline constexpr double kIdleCores = 0.1;

struct IdleSpan {
  double begin_seconds = 0;  // Unix time, by the rank's clock
  double end_seconds = 0;
  IdleCause cause = IdleCause::unexplained;
  std::int32_t waits_for = -1;  // a rank; -1: none or several
};

struct RankIdle {
  std::int32_t rank = 0;
  std::int32_t node = 0;
  double watched_seconds = 0;  // from the start of its processes to their last samples
  std::array<double, kIdleCauses> seconds{};
  std::map<std::int32_t, double> waited_for;  // seconds of waiting_for_rank, by rank
  std::vector<IdleSpan> spans;                // ascending; neighbours of one cause are merged
};

struct IdleWait {
  std::int32_t rank = 0;
  double seconds = 0;
};

struct IdleTime {
  std::vector<RankIdle> ranks;  // ascending
  // Means over the ranks.
  double watched_seconds = 0;
  std::array<double, kIdleCauses> seconds{};
  std::map<std::int32_t, double> waited_for;

  // Returns the ranks that others waited for, the longest waits first.
  std::vector<IdleWait> longest_waits() const;
};

// REQUIRES: ascending ranks.
IdleTime idle_time_of(const std::vector<HostTrack>& tracks);

}  // namespace cox::diagnosis
