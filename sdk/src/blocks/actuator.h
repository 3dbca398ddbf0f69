// An actuator implements one capability on one rank. The class derives from each interface below
// that the capability needs:
//
//   Actuator   before the first round: limits of the process and the model, abilities for the job
//   Measuring  before the first step: the cost of a plan
//   Steering   the beginning of a step: the plan to follow
//   Comparing  the ballot of a step: state that must be equal on all ranks
//   Voting     the ballot of a step: work that ranks end together without calls of their own
//   Reporting  the end of a step: observations
//   Saving     between steps: this rank's state for a save
//   Lasting    a save, and the end of the job: final state for the program
//
// A session calls all actuators alike, in the order of its ActuatorList. So a new capability is a
// new actuator in the capability's folder, without a change to the session. Training thread only;
// functions that communicate say so. The step path never throws.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/evidence.h"
#include "coordinator/core/job.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"

namespace torch::nn {
class Module;
}

namespace cox::metrics {
struct StepBuckets;
struct StepRow;
}  // namespace cox::metrics

namespace cox::runtime {
struct MeasuredFacts;
}

namespace cox::detail {

struct SampleStep;  // input of a calibration: a batch, and the memory that a step will hold

// LoopKind distinguishes loops whose ranks agree on plans: `reducing` is a loop with a Reducer,
// ManualParallel or Trainer. In any other loop a session only watches, and applies no plan.
enum class LoopKind { watching, reducing };

// CalibrationHost is the session's interface for a calibration.
class CalibrationHost {
 public:
  virtual ~CalibrationHost() = default;
  virtual transport::Communicator& ranks() = 0;  // all ranks, for collective calls
  // Returns the measurements so far; rank 0's count.
  virtual runtime::MeasuredFacts& facts() = 0;
  // Lets the policies decide the first plan anew from facts(). Returns, on rank 0, the policies'
  // reasons; logs all reasons that do not refuse the job. Collective. Throws cox::Error.
  virtual std::vector<Reason> learn() = 0;
  virtual const Plan& plan() const = 0;  // in force now
  // Tells all actuators to drop a run's state for the rest of its step (Steering::forget_run).
  virtual void forget_run() = 0;
  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  virtual void agree(const Status& mine) = 0;
};

// StepEnd describes the end of a step.
struct StepEnd {
  RankId rank{};
  RoundId round{};
  const Plan& plan;           // in force in the round
  std::uint64_t samples = 0;  // worked on by this rank
  StepId step{};
};

// EqualBits must be the same on all ranks in a step.
struct EqualBits {
  const char* what = nullptr;  // "the loss scale", for messages; null = nothing to compare
  std::uint64_t bits = 0;
};

// StepOutput is the data that leaves the rank at the end of a step.
struct StepOutput {
  metrics::StepRow* row = nullptr;            // for the run directory; null without one
  std::span<const BlockEvidence> evidence{};  // one entry for each block, valid until the next step
  const metrics::StepBuckets* buckets = nullptr;  // valid until the next step; null in most steps
  // The operators of this rank so far; null in most steps, which add nothing.
  std::shared_ptr<const OperatorTable> operators{};
};

// SavedRow names the row that a save holds for every rank.
struct SavedRow {
  const char* name;   // "fp8": the tensor of rank 3 is "fp8.rank3"
  const char* title;  // "FP8 scaling", for messages
};

// EndState is a capability's state on this rank in a save or at the end of a job.
struct EndState {
  std::uint64_t bits = 0;  // equal on all ranks
  // Whether only steps wrote the state. After the loop a rank may use the state as it likes.
  bool is_of_steps = true;
  std::string not_finite;  // names the first non-finite part, "parameter 3 of 12"; empty = none
};

// Actuator is for a capability with work before the first round. All ranks agree on each actuator's
// outcome.
class Actuator {
 public:
  virtual ~Actuator() = default;

  // Prepares the process. Called once, before a model exists.
  virtual Status prepare() { return ok_status(); }
  // Adds a model from now on. Throws cox::Error.
  virtual void attach(torch::nn::Module&) {}
  // Removes the model, and leaves it in its original state.
  virtual void release() {}
  // Returns ok if the settings are possible with the attached parts. Local.
  virtual Status check(LoopKind) { return ok_status(); }
  // Restricts the capability to what every rank can do. Collective.
  virtual Status negotiate(transport::Communicator&) { return ok_status(); }
  // Adds the capability's abilities to the coordinator's facts about the job.
  virtual void contribute(JobFacts&) const {}
};

// Measuring is for a capability whose settings need a plan. Such a capability measures the cost of
// a plan on a sample step before the first step.
class Measuring {
 public:
  virtual ~Measuring() = default;

  // Returns the section of the settings that govern the capability: "memory" for memory.*.
  virtual const char* name() const = 0;
  // Returns whether the settings request a plan.
  virtual bool is_wanted() const = 0;
  // Returns the end of a warning: the consequence for a program whose loop applies no plans.
  virtual std::string without() const = 0;
  // Returns whether the settings leave a choice.
  virtual bool wants_calibration() const = 0;
  // Collective. Throws cox::Error, on all ranks if the settings cannot be met.
  virtual void calibrate(const SampleStep&, CalibrationHost&) = 0;
};

// Steering is for a capability that follows the plan, or begins every step anew. No function here
// communicates, blocks or throws.
class Steering {
 public:
  virtual ~Steering() = default;

  // Follows the plan of the round that begins; called in loops that apply plans.
  virtual void apply(const Plan&, RoundId) {}
  virtual void begin_step() {}
  // Drops a trial run's state for the rest of its step.
  virtual void forget_run() {}
  // Begins the open step anew, after a calibration within it.
  virtual void restart_step() {}
};

// Comparing is for a capability that needs equal state on all ranks.
class Comparing {
 public:
  virtual ~Comparing() = default;

  // Names a difference for which equal_bits() has no name here.
  virtual const char* name() const = 0;
  // Returns the bits to compare in the open step. Does not communicate, block or throw.
  virtual EqualBits equal_bits() const = 0;
  // Explains differing bits, for the error that ends the job on all ranks. Collective.
  virtual std::string explain_difference(transport::Communicator&) { return {}; }
};

// Voting is for a capability with work beside the steps that all ranks must end in the same step.
// No function here communicates, blocks or throws.
class Voting {
 public:
  virtual ~Voting() = default;

  // Adds this rank's votes to the ballot of the open step.
  virtual void vote(StepBallot&) = 0;
  // Receives the merged votes, the same on all ranks.
  virtual void hear(const StepBallot& merged) = 0;
};

// Reporting is for a capability with observations to report. No function here communicates, blocks
// or throws.
class Reporting {
 public:
  virtual ~Reporting() = default;

  virtual void end_step(const StepEnd&, StepOutput&) {}
  // Fills fields of the report to the coordinator. Called after end_step(), and once when the job
  // ends.
  virtual void sign(RankSignal&) const {}
  // Returns the next fragment to send, or one of kind `none`.
  virtual Fragment next_fragment() { return {}; }
};

// Saving is for a capability with state of each rank that belongs in a save.
class Saving {
 public:
  virtual ~Saving() = default;

  // Returns the name of the row saved for every rank, or null if there is none; equal on all ranks.
  virtual const SavedRow* saved_row() const = 0;
  virtual std::vector<double> save() const = 0;
  virtual Status load(std::span<const double>) = 0;
};

// Lasting is for a capability with final state that must be finite and equal on all ranks.
class Lasting {
 public:
  virtual ~Lasting() = default;

  // Reads the state as it is now. Does not communicate.
  virtual EndState end_state() const = 0;
};

}  // namespace cox::detail
