// An actuator is what one capability does on one rank. Its class derives from each interface below
// that the capability needs:
//
//   Actuator   before the first round: what the process and the model allow, what the job can do
//   Measuring  before the first step: what a plan would cost
//   Steering   the beginning of a step: the plan is followed
//   Comparing  the ballot of a step: what must be equal on all ranks
//   Voting     the ballot of a step: what ranks end together without calls of their own
//   Reporting  the end of a step: what was seen
//   Saving     between steps: what a save must hold of this rank
//   Lasting    a save, and the end of the job: what they leave to the program
//
// A session calls all actuators alike, in the order of its ActuatorList; so a capability is added
// by adding its actuator, and the session stays as it is. Actuators live in the folder of their
// capability. Training thread only; functions that communicate say so. Nothing of the step path
// throws.
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

struct SampleStep;  // what the loop gives to a calibration: a batch, and what it will hold

// LoopKind says whether ranks agree on plans: `reducing` is a loop with a Reducer, ManualParallel
// or Trainer. In any other loop a session only watches, and no plan is carried out.
enum class LoopKind { watching, reducing };

// CalibrationHost is what a calibration may ask of its session.
class CalibrationHost {
 public:
  virtual ~CalibrationHost() = default;
  virtual transport::Communicator& ranks() = 0;  // of the job, for collective calls
  // Returns what was measured so far; rank 0's counts.
  virtual runtime::MeasuredFacts& facts() = 0;
  // Lets the policies decide the first plan anew from facts(). Returns, on rank 0, their reasons;
  // logs all that do not refuse the job. Collective. Throws cox::Error.
  virtual std::vector<Reason> learn() = 0;
  virtual const Plan& plan() const = 0;  // in force now
  // Tells all actuators to drop what a run kept for the rest of its step (Steering::forget_run).
  virtual void forget_run() = 0;
  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  virtual void agree(const Status& mine) = 0;
};

// StepEnd says where a step ended.
struct StepEnd {
  RankId rank{};
  RoundId round{};
  const Plan& plan;           // in force in that round
  std::uint64_t samples = 0;  // that this rank worked on
  StepId step{};
};

// EqualBits must be the same on all ranks in a step.
struct EqualBits {
  const char* what = nullptr;  // "the loss scale", for messages; null = nothing to compare
  std::uint64_t bits = 0;
};

// StepOutput is what leaves the rank at the end of a step.
struct StepOutput {
  metrics::StepRow* row = nullptr;                // for the run directory; null without one
  std::span<const BlockEvidence> evidence{};      // one entry a block, valid until the next step
  const metrics::StepBuckets* buckets = nullptr;  // valid until the next step; null in most steps
  // The operators of this rank so far; null in most steps, where nothing is new.
  std::shared_ptr<const OperatorTable> operators{};
};

// SavedRow names the row that a save holds of every rank.
struct SavedRow {
  const char* name;   // "fp8": the tensor of rank 3 is "fp8.rank3"
  const char* title;  // "FP8 scaling", for messages
};

// EndState is what a save or the end of a job leaves of a capability on this rank.
struct EndState {
  std::uint64_t bits = 0;  // equal on all ranks
  // Whether nothing but steps wrote it. After its loop a rank may use it as the rank likes.
  bool is_of_steps = true;
  std::string not_finite;  // names the first part that is not, "parameter 3 of 12"; empty = none
};

// Actuator is for a capability with something to do before the first round. All ranks agree on each
// one's outcome.
class Actuator {
 public:
  virtual ~Actuator() = default;

  // Gets what it needs of the process. Called once, before a model exists.
  virtual Status prepare() { return ok_status(); }
  // Lets a model take part from now on. Throws cox::Error.
  virtual void attach(torch::nn::Module&) {}
  // Lets the model no longer take part, and leaves it as if it never had.
  virtual void release() {}
  // Returns ok when the settings can be carried out with what is attached. Local.
  virtual Status check(LoopKind) { return ok_status(); }
  // Restricts what it can do to what every rank can. Collective.
  virtual Status negotiate(transport::Communicator&) { return ok_status(); }
  // Adds what it can do to what the coordinator is told of the job.
  virtual void contribute(JobFacts&) const {}
};

// Measuring is for a capability whose settings ask for what only a plan can do. Such a capability
// measures what a plan would cost, on a sample step before the first one.
class Measuring {
 public:
  virtual ~Measuring() = default;

  // Returns the section of the settings that govern it: "memory" for memory.*.
  virtual const char* name() const = 0;
  // Returns whether the settings ask for a plan.
  virtual bool is_wanted() const = 0;
  // Returns what the program gets where no loop carries plans out, as the end of a warning.
  virtual std::string without() const = 0;
  // Returns whether the settings leave something to choose.
  virtual bool wants_calibration() const = 0;
  // Collective. Throws cox::Error, on all ranks when the settings cannot be met.
  virtual void calibrate(const SampleStep&, CalibrationHost&) = 0;
};

// Steering is for a capability that follows the plan, or begins every step anew. No function here
// communicates, blocks or throws.
class Steering {
 public:
  virtual ~Steering() = default;

  // Follows the plan of the round that begins; called in loops that carry plans out.
  virtual void apply(const Plan&, RoundId) {}
  virtual void begin_step() {}
  // Drops what a run of a trial kept for the rest of its step.
  virtual void forget_run() {}
  // Begins the open step anew, after a calibration within it.
  virtual void restart_step() {}
};

// Comparing is for a capability that needs a state which is equal on all ranks.
class Comparing {
 public:
  virtual ~Comparing() = default;

  // Names a difference for which equal_bits() has no name here.
  virtual const char* name() const = 0;
  // Returns what must be equal in the open step. Does not communicate, block or throw.
  virtual EqualBits equal_bits() const = 0;
  // Explains bits that differ, for the error that ends the job on all ranks. Collective.
  virtual std::string explain_difference(transport::Communicator&) { return {}; }
};

// Voting is for a capability with work beside the steps that all ranks must end in the same one. No
// function here communicates, blocks or throws.
class Voting {
 public:
  virtual ~Voting() = default;

  // Adds this rank's votes to the ballot of the open step.
  virtual void vote(StepBallot&) = 0;
  // Learns the votes of all ranks, merged: the same on each.
  virtual void hear(const StepBallot& merged) = 0;
};

// Reporting is for a capability that sees something worth telling. No function here communicates,
// blocks or throws.
class Reporting {
 public:
  virtual ~Reporting() = default;

  virtual void end_step(const StepEnd&, StepOutput&) {}
  // Fills fields of the report to the coordinator; called after end_step(), and once when the job
  // ends.
  virtual void sign(RankSignal&) const {}
  // Returns the next fragment to send, or one of kind `none` when there is none.
  virtual Fragment next_fragment() { return {}; }
};

// Saving is for a capability whose state of each rank belongs in a save.
class Saving {
 public:
  virtual ~Saving() = default;

  // Returns the name of the row that is saved of every rank, null while none is; equal on all
  // ranks.
  virtual const SavedRow* saved_row() const = 0;
  virtual std::vector<double> save() const = 0;
  virtual Status load(std::span<const double>) = 0;
};

// Lasting is for a capability that leaves something which must be equal on all ranks and finite.
class Lasting {
 public:
  virtual ~Lasting() = default;

  // Reads what it leaves, as it is now. Does not communicate.
  virtual EndState end_state() const = 0;
};

}  // namespace cox::detail
