// PhaseEvents tells where a device's time went in a step. At every change of phase an event goes
// behind all that the training stream was given so far; when the last event of a step has passed,
// the times between them are read. Nothing waits: a step's times are there one or two steps later,
// and those of a step that the device has not finished after kSteps more are dropped.
//
//   begin_step --> change(phase) ... --> end_step(host) --> take(), in this step or a later one
//
// Thread rule: the training thread; events go onto its current stream. Owns its events and uses
// them again.
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
  static constexpr std::size_t kSteps = 4;  // that are waited for at once

  // What the host measured of a step, handed back with its device's times.
  struct Host {
    double wall_seconds = 0;
    double waiting_seconds = 0;
    bool is_waiting_known = false;
  };
  struct Times {
    // Sums to wall_seconds: what the device's phases do not fill is `other`.
    std::array<double, kPhases> phase_seconds{};
    Host host;  // its wall time is never less than the device's
  };

  // REQUIRES: the device has streams and events with clocks (no CPU).
  explicit PhaseEvents(c10::Device device) : device_(device) {}

  void begin_step();
  // What the stream is given from here on belongs to `phase`.
  void change(Phase phase);
  // The open step cannot be told apart from other work; it will have no times.
  void spoil() { is_spoiled_ = true; }
  void end_step(const Host& host);

  // Returns the times of the oldest step that is over on the device and was not taken; nothing
  // where there is none. One a step: where the device now ends a step before the next one asks, and
  // now behind it, none is passed over.
  std::optional<Times> take();

 private:
  struct Mark {
    c10::Event event;
    Phase phase;  // of what follows it
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
