// TelemetryState is the recording end of telemetry. It takes every StepRecord on the coordinator's
// thread, lets each topic's view follow it, and publishes an immutable Snapshot by swapping one
// pointer. Recording costs microseconds and never waits for a reader: the mutex is held for the
// swap alone, and old snapshots die with their last reader.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "coordinator/core/stall.h"
#include "coordinator/decide/record.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

class TelemetryState final : public StepSink {
 public:
  // Publishes a first snapshot, in which the job waits for its first round.
  // `peak_flops_per_device`: as the settings have it, 0 = not given.
  TelemetryState(const JobFacts& job, UnixTime started, BuildInfo build = {},
                 double peak_flops_per_device = 0);

  // On the coordinator's thread.
  void record(const StepRecord& record) override;

  // Shows who keeps whom waiting as of `now`, or that nobody does, at once. On the coordinator's
  // thread.
  void set_stall(const std::optional<Stall>& stall, UnixTime now);

  // The job is over; the pages stay up and say so. On the coordinator's thread, or after it ended.
  void finish();

  // Sets a view that does not follow rounds: HeldBytes, OperatorTable, FindingsView. Pages show it
  // from the next round on. Any thread may call it.
  template <class View>
  void set(std::shared_ptr<const View> view) {
    const std::lock_guard lock(mutex_);
    set_.set(std::move(view));
  }
  // Sets the step with which the job ends by itself, likewise; 0 = not known.
  void set_last_step(std::uint64_t step);

  // Returns the newest snapshot, never null. Any thread may call it; it does not wait for
  // recording.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  bool are_tables_due(const StepRecord& record);
  void publish();

  Snapshot now_;                         // the recording thread's own copy
  std::optional<UnixTime> tables_time_;  // of the round from which the tables of ranks are

  mutable std::mutex mutex_;  // guards what follows
  Views set_;
  std::uint64_t last_step_ = 0;
  std::shared_ptr<const Snapshot> published_;
};

}  // namespace cox::metrics
