// TelemetryState records for telemetry. Receives every StepRecord on the coordinator's thread,
// updates each topic's view, and publishes an immutable Snapshot by swapping one pointer. Recording
// takes microseconds and never waits for a reader: the mutex is held for the swap alone, and the
// last reader of an old snapshot frees it.
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
  // Publishes a first snapshot, in which the job waits for its first round. `peak_flops_per_device`
  // comes from the settings; 0 = not given.
  TelemetryState(const JobFacts& job, UnixTime started, BuildInfo build = {},
                 double peak_flops_per_device = 0);

  // Called on the coordinator's thread.
  void record(const StepRecord& record) override;

  // Publishes at once which ranks keep others waiting as of `now`, or that none does. Called on the
  // coordinator's thread.
  void set_stall(const std::optional<Stall>& stall, UnixTime now);

  // Marks the job as finished; the pages stay up. Called on the coordinator's thread, or after its
  // end.
  void finish();

  // Sets a view that does not follow rounds: HeldBytes, OperatorTable, FindingsView. Pages show the
  // view from the next round on. Any thread may call it.
  template <class View>
  void set(std::shared_ptr<const View> view) {
    const std::lock_guard lock(mutex_);
    set_.set(std::move(view));
  }
  // Sets the step after which the job ends by itself, from the next round on; 0 = unknown. Any
  // thread may call it.
  void set_last_step(std::uint64_t step);

  // Returns the newest snapshot, never null. Does not wait for recording. Any thread may call it.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  bool are_tables_due(const StepRecord& record);
  void publish();

  Snapshot now_;                         // the recording thread's own copy
  std::optional<UnixTime> tables_time_;  // time of the round of the newest tables of ranks

  mutable std::mutex mutex_;  // guards the members below
  Views set_;
  std::uint64_t last_step_ = 0;
  std::shared_ptr<const Snapshot> published_;
};

}  // namespace cox::metrics
