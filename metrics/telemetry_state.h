// TelemetryState is the recording end of telemetry. It takes every StepRecord on the coordinator's
// thread, adds it to each topic's part of the Snapshot (record() names every part), and publishes
// an immutable Snapshot by swapping one pointer. Recording costs microseconds and never waits for a
// reader: the mutex is held for the swap alone, and old snapshots die with their last reader.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "coordinator/decide/record.h"
#include "metrics/snapshot.h"
#include "metrics/topics/numerics_fold.h"

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

  // Sets the bytes that a rank holds beside activations. Pages show them from the next round on.
  // Any thread may call it.
  void set_held(const HeldBytes& held);
  // Sets the step with which the job ends by itself, likewise; 0 = not known.
  void set_last_step(std::uint64_t step);
  // Sets rank 0's operators. Pages show them from the next round on. Any thread may call it.
  void set_operators(std::shared_ptr<const OperatorTable> operators);

  // Sets what was found in the newest steps. Pages show it from the next round on. Any thread may
  // call it. REQUIRES: not null.
  void set_findings(std::shared_ptr<const FindingsView> findings);

  // Returns the newest snapshot, never null. Any thread may call it; it does not wait for
  // recording.
  std::shared_ptr<const Snapshot> snapshot() const;

 private:
  void add_memory(const StepRecord& record);
  void publish();

  struct MadeOf {  // kept alive, so that a pointer that is equal is the same thing
    std::shared_ptr<const JobFacts> job;
    std::shared_ptr<const Plan> plan;
    friend bool operator==(const MadeOf&, const MadeOf&) = default;
  };

  Snapshot now_;  // the recording thread's own copy
  MadeOf memory_made_of_;
  NumericsFold numerics_;
  mutable std::mutex mutex_;  // guards what follows
  HeldBytes held_;
  std::uint64_t last_step_ = 0;
  std::shared_ptr<const OperatorTable> operators_;
  std::shared_ptr<const FindingsView> findings_ = now_.findings;
  std::shared_ptr<const Snapshot> published_;
};

}  // namespace cox::metrics
