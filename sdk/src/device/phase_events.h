// PhaseEvents measures a device's time in each phase of a step. Every change of phase records an
// event on the training stream; after the step's last event has passed, the times between events
// are read. Never waits: a step's times arrive one or two steps later. If more than kSteps ended
// steps wait, the oldest is dropped.
//
//   begin_step --> change(phase) ... --> end_step(host) --> take(), in this step or a later one
//
// Thread rule: the training thread; events go onto its current stream. Owns its events and reuses
// them.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "coordinator/core/phase.h"

namespace cox::detail {

class PhaseEvents {
 public:
  static constexpr std::size_t kSteps = 4;  // ended steps waiting at once

  // The host's measurements of a step, returned with the device's times.
  struct Host {
    double wall_seconds = 0;
    double waiting_seconds = 0;
    bool is_waiting_known = false;
  };
  struct Times {
    // Sums to wall_seconds; time outside of the device's phases is `other`.
    std::array<double, kPhases> phase_seconds{};
    Host host;  // wall time is at least the device's
  };

  // REQUIRES: the device has streams and events with clocks (no CPU).
  explicit PhaseEvents(c10::Device device) : device_(device) {}

  void begin_step();
  // Later work of the stream belongs to `phase`.
  void change(Phase phase);
  // Marks the open step as mixed with other work, so that it has no times.
  void spoil() { is_spoiled_ = true; }
  void end_step(const Host& host);

  // Returns the times of the oldest step that is over on the device and not yet taken, or nothing.
  // Call it once a step: each call returns at most one step, so that none is lost when the device's
  // steps end sometimes before the next call and sometimes after it.
  std::optional<Times> take();

 private:
  struct Mark {
    c10::Event event;
    Phase phase;  // phase of the work after the event
  };
  struct Step {
    std::vector<Mark> marks;
    Host host;
  };
  c10::Event unused();
  void mark(Phase phase);
  void put_back(Step step);
  static bool is_over(const Step& step);
  static Times times_of(const Step& step);

  const c10::Device device_;
  std::vector<c10::Event> unused_;
  Step open_;
  bool is_spoiled_ = false;
  std::deque<Step> ended_;  // oldest first
};

}  // namespace cox::detail
