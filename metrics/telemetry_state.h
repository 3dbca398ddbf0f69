// TelemetryState: the recording end of telemetry. Takes every StepRecord on the coordinator's
// thread, folds it into counters and short histories, and publishes an immutable Snapshot by
// swapping one pointer. Recording costs microseconds and never waits for a reader: the mutex is
// held for the swap alone, and old snapshots die with their last reader.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "coordinator/core/record.h"
#include "metrics/numerics_fold.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

class TelemetryState final : public StepSink {
 public:
  static constexpr std::size_t kDecisions = 200;

  // Publishes a first snapshot, in which the job waits for its first round.
  TelemetryState(const JobFacts& job, UnixTime started);

  // On the coordinator's thread.
  void record(const StepRecord& record) override;

  // The job is over; the pages stay up and say so. On the coordinator's thread, or after it ended.
  void finish();

  // Shown from the next round on. From any thread.
  void set_held(const HeldBytes& held);

  // The newest snapshot, never null. From any thread; does not block on recording.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  void count(const StepRecord& record);
  void count_trouble(const StepRecord& record);
  void note_point(const StepRecord& record);
  void note_plan(const StepRecord& record);
  void note_memory(const StepRecord& record);
  void note_decisions(const StepRecord& record);
  void note_ranks(const StepRecord& record);
  void mark_seen(const StepSignals& signals);
  void publish();

  struct MadeOf {  // kept alive, so that a pointer that is equal is the same thing
    std::shared_ptr<const JobFacts> job;
    std::shared_ptr<const Plan> plan;
    friend bool operator==(const MadeOf&, const MadeOf&) = default;
  };

  Snapshot now_;  // the recording thread's own copy
  MadeOf memory_made_of_;
  NumericsFold numerics_;
  std::vector<bool> seen_;
  mutable std::mutex mutex_;  // guards what follows
  HeldBytes held_;
  std::shared_ptr<const Snapshot> published_;
};

}  // namespace cox::metrics
