// HostLanes draws the host timeline of one rank: counters of what its process used, of the machine
// and its GPUs where the rank tells of them, and a lane of the stretches in which the rank was
// idle.
//
//   HostSample, RankIdle (idle_time.h) -> HostLanes -> TraceEvent (trace_event.h)
//
// Holds one sample. Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "coordinator/core/host_sample.h"
#include "coordinator/diagnosis/idle_time.h"
#include "coordinator/diagnosis/rank_lanes.h"
#include "coordinator/diagnosis/trace_event.h"

namespace cox::diagnosis {

// The most events that one sample becomes.
std::size_t events_of(const HostSample& sample);

class HostLanes {
 public:
  // Moments beyond `last_seconds` (Unix time, by the rank's clock) are not drawn, nor any before
  // the picture begins. Every `stride`-th sample is drawn, with what passed since the one drawn
  // before; one whose clock was set back is not. REQUIRES: stride >= 1.
  HostLanes(std::int32_t rank, const LaneClock& clock, double last_seconds, std::size_t stride)
      : rank_(rank), clock_(clock), last_seconds_(last_seconds), stride_(stride) {}

  // Draws the next sample of the file.
  void draw(const HostSample& sample, const TraceSink& sink);
  void draw_idle(std::span<const IdleSpan> spans, const TraceSink& sink) const;

 private:
  std::optional<std::int64_t> place(double seconds) const;
  void put(std::string_view name, std::span<const TraceArgument> series, std::int64_t at,
           const TraceSink& sink) const;
  void draw_rates(const HostSample& sample, std::int64_t at, const TraceSink& sink) const;
  void draw_levels(const HostSample& sample, std::int64_t at, const TraceSink& sink) const;

  std::int32_t rank_;
  LaneClock clock_;
  double last_seconds_;
  std::size_t stride_;
  std::size_t since_ = 0;      // samples since the one drawn last
  std::int64_t drawn_at_ = 0;  // that one's moment
  std::optional<HostSample> before_;
};

}  // namespace cox::diagnosis
