// StepRecorder: where a rank's time went in the open step, and what the user said about it. The
// first stage of the flow: probes -> StepReport -> RankSignal. The same calls move the rank's mark
// (MarkBoard), which others read while the step lasts. Time is passed in; nothing allocates after
// construction. Owned and used by the training thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/shared/mark_board.h"
#include "metrics/records/run_format.h"
#include "metrics/records/step_row.h"
#include "sdk/src/device/device_facts.h"
#include "sdk/src/device/phase_events.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {

struct UserScalar {
  std::array<char, 24> name{};  // NUL-terminated
  double value = 0;
};
inline constexpr std::size_t kUserScalars = 8;

struct StepReport {
  StepId step{};
  std::array<double, kPhases> phase_seconds{};  // but for `host` they sum to wall_seconds
  double wall_seconds = 0;
  double loss = 0;  // weighted mean; NaN when nothing was reported
  double weight = 0;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  double gradient_norm = 0;  // of the averaged gradient
  bool has_gradient_norm = false;
  std::uint32_t nonfinite_values = 0;
  float reduction_seconds = 0;          // of gradient buckets, from launch to result
  float reduction_exposed_seconds = 0;  // the part of it after the end of backward
  // The part of communication before the last rank arrived; 0 without the flag waiting_measured.
  double waiting_seconds = 0;
  std::uint16_t flags = 0;  // SignalFlag bits
  std::array<UserScalar, kUserScalars> scalars{};
  std::size_t scalar_count = 0;

  double save_seconds = 0;  // between the step before and this one

  // False where a device's times of no step have come since the last report.
  bool has_times = true;

  bool has(SignalFlag flag) const { return (flags & static_cast<std::uint16_t>(flag)) != 0; }
};

// Returns the second field of a schedstat file, nanoseconds; empty when there is none. Pure.
std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat);

// RunQueue tells for how long a thread was ready to run and had no core, since it began: what a
// machine with more ranks than cores takes from each of them. The kernel counts it
// (/proc/PID/task/TID/schedstat, second field; Linux with CONFIG_SCHED_INFO). One thread makes and
// reads it.
class RunQueue {
 public:
  // Opens the file of the thread that calls. Empty where it cannot be read.
  static std::optional<RunQueue> of_this_thread(const std::string& proc = "/proc");
  RunQueue(RunQueue&& other) noexcept
      : file_(std::exchange(other.file_, -1)), last_ns_(other.last_ns_) {}
  RunQueue& operator=(RunQueue&& other) noexcept {
    std::swap(file_, other.file_);
    last_ns_ = other.last_ns_;
    return *this;
  }
  ~RunQueue();

  // Returns the time so far; what was read last where it cannot be read any more. One system call.
  Seconds queued();

 private:
  explicit RunQueue(int file) : file_(file) {}
  int file_ = -1;
  std::uint64_t last_ns_ = 0;
};

class StepRecorder {
 public:
  static constexpr std::size_t kMaxDepth = 16;  // of nested phases; deeper ones book on the 16th

  void begin(StepId step, Clock::time_point now);
  void enter(Phase phase, Clock::time_point now);
  void leave(Clock::time_point now);

  // The rank waits for others, in the open step or between two: in a call of all ranks.
  void begin_waiting(Clock::time_point now);
  void end_waiting(Clock::time_point now);
  // What the rank does until its next step begins; outside = nothing that we know of.
  void do_between_steps(Activity activity, Clock::time_point now);
  // What the rank does in the open step, outside of its phases, until told otherwise or until the
  // next step begins: `other` is the step's own work. Returns what it was before.
  Activity do_aside(Activity activity, Clock::time_point now);

  // From here on the rank's mark follows what is recorded. `mark` must outlive the recorder.
  void move_mark(transport::MarkWriter* mark) { mark_ = mark; }

  // Leaves out of phases, from here on, the time for which the thread stood in the run queue: it is
  // booked on communication, as waiting. Costs a system call a section. `queued` returns that time
  // since the thread began.
  void leave_out_queueing(std::function<Seconds()> queued);

  // From here on phases are timed by `events` on a device, where work is done later than the host
  // gives it. A report then has the times of the newest step that the device has finished, and none
  // where there is no new one.
  void time_on_device(std::unique_ptr<PhaseEvents> events) { events_ = std::move(events); }

  // A collective call of the open step began with a wait of `seconds` for the last rank; an empty
  // one says that nobody knows how long, so the step's waiting is not known.
  void waited(std::optional<double> seconds);

  // Coxswain itself worked for so long between two steps: `host` of the next one.
  void add_host(Clock::duration worked) { host_ += Seconds(worked).count(); }

  // Takes the time between the two out of the step.
  void leave_out(Clock::time_point from, Clock::time_point to);

  void loss(double mean, double weight);
  void samples(std::uint64_t count) { report_.samples += count; }
  void tokens(std::uint64_t count) { report_.tokens += count; }
  void gradient_norm(double value) {
    report_.gradient_norm = value;
    report_.has_gradient_norm = true;
  }
  void nonfinite_values(std::uint32_t count) { report_.nonfinite_values += count; }
  void reduction(double seconds, double exposed_seconds) {
    report_.reduction_seconds = static_cast<float>(seconds);
    report_.reduction_exposed_seconds = static_cast<float>(exposed_seconds);
  }
  void flag(SignalFlag flag) { report_.flags |= static_cast<std::uint16_t>(flag); }
  // The same name again replaces the value; a ninth name is dropped.
  void log(std::string_view name, double value);

  // Ends the step and returns its report, which is valid until the next begin().
  const StepReport& end(Clock::time_point now);

  bool is_open() const { return open_; }
  const StepReport& report() const { return report_; }

 private:
  void book_until(Clock::time_point now);
  double take_queued(double booked_seconds);
  void add_up_waiting();
  Phase phase() const;
  void take_device_times();
  // Runs `work` on the events, and times on the host from then on where the device refuses.
  void with_events(const std::function<void(PhaseEvents&)>& work);
  Activity activity() const;
  void tell(Clock::time_point now);

  StepReport report_;
  std::array<Phase, kMaxDepth> stack_{};
  std::size_t depth_ = 0;
  Clock::time_point started_{};
  Clock::time_point booked_until_{};
  double loss_sum_ = 0;
  std::function<Seconds()> queued_;  // empty where ranks have cores
  Seconds queued_until_{0};
  double queued_elsewhere_ = 0;   // seconds in the run queue in phases other than communication
  double queued_in_calls_ = 0;    // in communication
  double waited_ = 0;             // for the last rank, in calls
  bool has_called_ = false;       // waited() was called
  bool is_waiting_known_ = true;  // in every call so far
  std::unique_ptr<PhaseEvents> events_;  // null: phases are timed on the host
  bool open_ = false;
  Clock::time_point between_since_{};            // of between_
  double saved_ = 0;                             // since the step before
  double host_ = 0;                              // likewise
  Activity between_ = Activity::outside;         // of steps
  Activity before_waiting_ = Activity::outside;  // what between_ was
  Activity aside_ = Activity::other;             // in the open step, outside of its phases
  transport::MarkWriter* mark_ = nullptr;        // null = nobody reads marks yet
};

// The rank's signal for the coordinator and its row in the run directory are made from the report.
// Pure, but for run_info(), which looks at the machine.
//
// Returns the signal as far as the report knows it; the session fills in ids, and actuators add
// their fields.
RankSignal signal_from(const StepReport& report);

// Returns the signal without its times, so that a warm-up step enters no statistics.
RankSignal without_times(RankSignal signal);

// Returns the row of a step as far as the report knows it; actuators add their fields.
metrics::StepRow row_from(const StepReport& report, RoundId round, UnixTime now);

struct RunPlace {
  std::string program;
  RankId rank{};
  std::int32_t world_size = 1;
  RankId node{};  // the lowest rank of its machine
  std::optional<DeviceFacts> device{};
};
// Returns how this rank's run was started, for run.json. `environment` has entries NAME=VALUE;
// those that steer threads and transport are kept.
metrics::RunInfo run_info(const Config& config, const RunPlace& place, UnixTime now,
                          const std::vector<std::string>& environment);

}  // namespace cox::detail
