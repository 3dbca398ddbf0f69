// ControlEnd is this rank's end of the control plane. It owns the rank's run directory and, on rank
// 0, the lock that keeps other jobs out of it, telemetry (the state that the coordinator records
// into and the HTTP server that reads it) and the tally of the run. The session makes it; start()
// starts it all. Training thread only; rank 0's coordinator runs on a thread of its own below.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/core/reason.h"
#include "coordinator/decide/decide.h"
#include "coordinator/decide/policy.h"
#include "coordinator/decide/record.h"
#include "coordinator/io/folder_lock.h"
#include "coordinator/runtime/control_plane.h"
#include "coordinator/runtime/death_watch.h"
#include "coordinator/transport/shared/lifeline.h"
#include "coxswain/session.h"
#include "metrics/http/http_server.h"
#include "metrics/records/run_store.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/memory.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/session/membership.h"

namespace prometheus {
class Collectable;
}

namespace cox::detail {

class HostRecorder;

// RunPrice says what a run costs.
struct RunPrice {
  UnixTime started{};          // the time from which on it costs
  double per_device_hour = 0;  // of one rank; 0 = not given
};

// RunTally sums up the whole run for the summary at its end. It is a StepSink on rank 0 that adds
// up what each rank spent in each phase and hands every record on to the next sink. The
// coordinator's thread records; any thread may read.
class RunTally final : public StepSink {
 public:
  // `next` may be null and must outlive this.
  RunTally(std::int32_t world_size, StepSink* next, RunPrice price = {});

  void record(const StepRecord& record) override;

  // Returns the totals, with the rank that worked longest and the phase in which it lost most
  // against the fastest rank.
  SessionReport report() const;

 private:
  void add(const StepRecord& record);
  void add_memory(const StepRecord& record);
  void add_cost(SessionReport& report) const;

  using Sums = std::array<double, kPhases>;

  StepSink* next_;
  RunPrice price_;
  mutable std::mutex mutex_;   // guards what follows
  std::vector<Sums> seconds_;  // by rank
  SessionReport totals_;
  std::shared_ptr<const SharedEffects> effects_;  // of the newest record
  std::optional<PlanId> priced_;                  // the plan that totals_ speak of
  std::size_t models_ = 0;                        // memory models of the job at that time
  UnixTime newest_{};
};

UnixTime wall_clock();

class ControlEnd {
 public:
  // `program`: for run.json.
  ControlEnd(const Membership& job, PolicySet policies, std::string program);
  // After close() it waits some seconds where the status page is open in a browser, so that the
  // page shows the job's last values and its end.
  ~ControlEnd();

  // Sets the control state of the run that is resumed; only rank 0's is used. REQUIRES: start() was
  // not called.
  void restore(ControlState state) { restored_ = std::move(state); }
  // Lets the run go on from a save: the run directory keeps the rows of steps before `step`.
  // REQUIRES: start() was not called.
  void go_on_at(StepId step) { goes_on_at_ = step; }

  // Starts the control plane, telemetry and the run directory. Collective. Throws cox::Error on all
  // ranks when the port is taken, or the run directory cannot be used or is another job's. `loop`:
  // masks go over NCCL where plans act.
  void start(JobFacts facts, LoopKind loop);
  bool is_started() const { return plane_ != nullptr; }

  // REQUIRES: is_started().
  runtime::ControlPlane& plane() { return *plane_; }
  const runtime::ControlPlane& plane() const { return *plane_; }
  // Returns when NCCL has handed over what it was given of masks, so that gradients come to this
  // rank's device behind it, as on every other rank; or after control.nccl_seconds. Waits for no
  // device.
  void send_masks_off();
  // Decides the first plan anew; returns rank 0's reasons. Collective. Throws cox::Error.
  std::vector<Reason> learn(const runtime::MeasuredFacts& facts);

  // Returns the writer of the run directory's rows, null without a run directory.
  metrics::RunStoreWriter* rows() { return rows_.get(); }
  // Returns when the run directory holds the rows of all steps that every rank has ended, so that a
  // save never leads them. Collective when there is a run directory.
  void flush_rows();

  // Writes the operators of this rank into its run directory, and shows rank 0's on its pages.
  void keep(std::shared_ptr<const OperatorTable> operators);
  // Tells telemetry what a rank of this job holds beside activations; fields of 0 leave what is
  // known.
  void show_held(const metrics::HeldBytes& held);
  // Tells telemetry the step with which the job ends by itself.
  void show_last_step(std::uint64_t step);
  // Returns "http://127.0.0.1:9464/status" on rank 0, and an empty string elsewhere and when the
  // server is off.
  std::string status_address() const;
  std::shared_ptr<prometheus::Collectable> metrics() const;  // rank 0; elsewhere null
  SessionReport report() const;                              // of the run so far, on rank 0
  std::optional<ControlState> state() const;  // rank 0: a copy of what the coordinator knows

  // Reports the last signal and waits (polling) until no rank needs this one. Collective.
  // failed_precondition when others wait for this rank in a round to come.
  Status finish(const RankSignal& last);
  // Closes telemetry and the run directory.
  void close();
  // The job ends here by an error that this rank tells.
  void explain_end();

 private:
  struct Telemetry;

  Status lock_directory();
  void open_rows();
  void watch_stalls(runtime::ControlPlaneSetup& setup);
  void watch_deaths();
  void watch_host();
  void tell_last_ending();
  Status start_telemetry(const JobFacts& facts);
  metrics::RunStoreOptions row_options() const;
  std::filesystem::path journal_path() const;

  const Membership& job_;
  PolicySet policies_;
  const std::string program_;
  std::optional<ControlState> restored_;
  std::optional<StepId> goes_on_at_;
  metrics::HeldBytes held_;
  bool is_over_ = false;                          // close() was called
  std::unique_ptr<Telemetry> telemetry_;          // rank 0; outlives the coordinator's thread
  std::unique_ptr<RunTally> tally_;               // rank 0, records into telemetry_
  std::unique_ptr<runtime::ControlPlane> plane_;  // from start() on
  std::unique_ptr<runtime::DeathWatch> deaths_;   // rank 0, of a job of one node
  std::optional<transport::Lifeline> line_;       // by which deaths_ sees this rank
  std::optional<io::FolderLock> run_lock_;        // rank 0, of the run directory of all ranks
  std::unique_ptr<metrics::RunStoreWriter> rows_;
  std::unique_ptr<HostRecorder> host_;  // reads the marks of plane_
};

}  // namespace cox::detail
