// SessionState: what Session, StepScope, Reducer and Trainer share on one rank: the configuration,
// the communicators, the recorder of the open step, this rank's end of the control plane and, on
// rank 0, telemetry. Life: start() -> declare()/attach() -> ensure_started() (collective) -> steps
// -> finish() (collective). Training thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/config.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/evidence.h"
#include "coordinator/core/job.h"
#include "coordinator/core/log.h"
#include "coordinator/io/config_source.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/named_tensor.h"
#include "coxswain/session.h"
#include "metrics/run_store.h"
#include "sdk/src/precision/trial_step.h"
#include "sdk/src/session/block_watch.h"
#include "sdk/src/session/memory_probe.h"
#include "sdk/src/session/memory_steering.h"
#include "sdk/src/session/numerics_watch.h"
#include "sdk/src/session/precision_steering.h"
#include "sdk/src/session/run_tally.h"
#include "sdk/src/session/step_recorder.h"
#include "sdk/src/session/telemetry.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/world.h"

namespace cox::detail {

class SessionState {
 public:
  // Collective. Throws cox::Error.
  SessionState(int argc, const char* const* argv, SessionOptions options);
  ~SessionState();
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  const Config& config() const { return loaded_.config; }
  const std::vector<std::string>& arguments() const { return loaded_.rest; }
  RankId rank() const { return world_.all().rank(); }
  std::int32_t world_size() const { return world_.all().size(); }
  transport::Communicator& data() { return *data_; }
  StepRecorder& recorder() { return recorder_; }
  BlockWatch& blocks() { return blocks_; }
  PrecisionSteering& precision() { return precision_; }
  NumericsWatch& numbers() { return numbers_; }
  const Log& log() const { return log_; }
  const transport::WaitPolicy& wait_policy() const { return world_.wait_policy(); }

  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  void agree(const Status& mine);

  // Before ensure_started(): the model whose blocks the plan speaks of. Throws cox::Error.
  void attach(torch::nn::Module& model);
  void detach();
  // Before ensure_started(): what the loop can do with a plan.
  void declare(const Capabilities& capabilities, std::uint64_t global_batch,
               std::uint64_t micro_batch);
  // Before ensure_started(), on every rank: a reducer's ballots are the rounds from now on. Throws
  // cox::Error afterwards.
  void declare_reducing();
  // The parameters whose gradients the reducer averages: blocks are watched from now on.
  void watch_numbers(std::span<const at::Tensor> parameters);
  // Of a reducer, which keeps it for as long as it can answer.
  void tell_held_gradients(const std::shared_ptr<const GradientHolders::Holder>& holder) {
    gradient_holders_.add(holder);
  }
  // Before ensure_started(): the control state of the run that is being resumed (rank 0's counts).
  void restore_control(ControlState state) { restored_ = std::move(state); }
  // Collective the first time: starts the control plane, telemetry and the run directory.
  void ensure_started();
  bool is_started() const { return plane_ != nullptr; }

  // Whether rehearse() has anything to measure; it is to be called in the first step, before its
  // forward pass.
  bool wants_rehearsal() const;
  // Whether settings ask for plans that nothing in this loop carries out.
  bool is_missing_reducer() const { return has_something_to_plan() && !is_reducing_; }
  // Measures, on a sample step, what blocks cost in every number format and under every memory
  // action, as far as the settings leave a choice, and starts from the plan that follows. Throws
  // cox::Error on all ranks when a budget cannot be met on one. Collective.
  void rehearse(const SampleStep& sample);

  // Before the forward pass of a step on this batch: looks at the curvature of its loss, where a
  // probe is due (precision.curvature_every). Takes no part of the step's time. Does not
  // communicate.
  void probe_curvature(torch::nn::Module& model, const std::function<at::Tensor()>& loss);

  // Leaves with the next report. Throws cox::Error for an unknown block or a format that this job
  // cannot run.
  void wish(std::string_view block, PrecisionRequest request);

  void begin_step();
  void end_step() noexcept;
  // The number that the next begin_step() takes (after a resume or rollback).
  void set_next_step(StepId step) { next_step_ = step; }
  // The run goes on from a save: that is the next step, and its records go on too.
  void resume_at(StepId step) {
    next_step_ = step;
    goes_on_ = true;
  }

  // What this rank brings into the step's reduction, without loss and weight.
  StepBallot ballot();
  // Throws cox::Error on every rank, before an average is handed to any, unless the merged ballot
  // says that all are in the same round, step and plan; it names those that are not. Collective.
  void check_together(const StepBallot& merged);
  // What the reduction gave; equal on all ranks. Switches plans.
  void agreed(const StepBallot& merged);
  void pump() { plane_->pump(); }

  RoundId round() const { return round_; }  // the one that the open step will complete
  const Plan& plan() const { return plane_->plan(); }
  bool stop_agreed() const { return stop_agreed_; }  // by a reducer; equal on all ranks
  bool stop_asked_here() { return termination_.requested(); }
  bool stop_asked_anywhere();  // collective
  // Returns when the run directory holds the rows of all steps that every rank has ended, so that a
  // save never leads them. Collective when there is a run directory.
  void flush_rows();
  // What ranks remember of their numbers, one tensor a rank, on rank 0: for a save, between steps.
  // Empty where nothing is remembered. Collective. Throws cox::Error.
  std::vector<NamedTensor> saved_numbers();
  // After the reducer was made: what was saved. Of another world size, or where it does not fit,
  // scaling starts anew, and says so.
  void load_numbers(std::span<const NamedTensor> saved);

  // What a rank of this job holds beside activations, for telemetry; fields of 0 leave what is
  // known.
  void show_held(const metrics::HeldBytes& held);
  std::string status_address() const;
  SessionReport report() const;
  // Rank 0 only; a copy of what the coordinator knows now.
  std::optional<ControlState> control_state() const;

  void finish();

 private:
  bool remembers_numbers() const;
  void check_equal_configs();
  void print_start();
  void open_run_store();
  void watch_step();
  std::uint64_t fingerprint_of_step() const;
  bool has_something_to_plan() const { return steering_.is_wanted() || precision_.is_wanted(); }
  void agree_on_formats();
  void warn_of_idle_settings() const;
  bool wants_format_trial() const;
  void try_formats(const SampleStep& sample);
  bool wants_memory_trial() const;
  void try_memory(const SampleStep& sample);
  Result<MemoryProblem> measure_memory(const SampleStep& sample);
  void start_from(std::vector<planner::RankProblem> problems);
  std::vector<Reason> learn();
  void keep_profile(const std::vector<planner::RankProblem>& problems) const;
  metrics::RunStoreOptions run_store_options() const;
  void leave_after_failure() noexcept;
  std::filesystem::path journal_path() const;
  JobFacts job_facts() const;
  RankSignal signal_of(const StepReport& report);

  std::vector<std::string> environment_;
  Status config_status_;
  io::LoadedConfig loaded_;  // defaults when config_status_ is an error
  PolicySet policies_;
  std::string program_;
  Termination termination_;
  World world_;
  std::unique_ptr<transport::Communicator> data_;
  std::unique_ptr<transport::Communicator> farewell_;  // used once, by ranks that fail
  Log log_;

  Capabilities capabilities_{};
  std::uint64_t global_batch_ = 0;
  std::uint64_t micro_batch_ = 0;
  bool is_reducing_ = false;
  std::optional<ControlState> restored_;
  BlockWatch blocks_;
  MemorySteering steering_;
  PrecisionSteering precision_;
  NumericsWatch numbers_;
  at::DeviceType device_ = at::kCPU;  // of the model attached
  runtime::MeasuredFacts measured_;   // rank 0: what learn() was told
  GradientHolders gradient_holders_;
  bool has_rehearsed_ = false;
  float scale_of_round_ = 0;  // 0 = no scaler at work
  metrics::HeldBytes held_;

  std::unique_ptr<Telemetry> telemetry_;          // rank 0
  std::unique_ptr<RunTally> tally_;               // rank 0, records into telemetry_
  std::unique_ptr<runtime::ControlPlane> plane_;  // from ensure_started() on
  std::unique_ptr<metrics::RunStoreWriter> run_store_;
  MemoryProbe memory_;
  StepRecorder recorder_;
  StepId next_step_{};
  bool goes_on_ = false;           // from a save
  std::uint64_t steps_begun_ = 0;  // by this process
  RoundId round_{};
  std::uint64_t plan_of_round_ = 0;  // number in force while the open round runs
  bool open_control_round_ = false;  // the merged ballot says that all may open one
  bool stop_agreed_ = false;
  bool finished_ = false;
  std::uint64_t ranks_failing_ = 1;  // what farewell_ sums
};

}  // namespace cox::detail
