// Actuator is what one capability does on one rank: it says what it can carry out, follows the
// plan, measures what a plan would cost before the first step, reports what it saw, and gives and
// takes what a save must hold of it. A session keeps an ActuatorList and calls all of them alike,
// in the order of the list; so a capability is added by adding its actuator, and the session stays
// as it is. Actuators live in the folder of their capability. Training thread only; functions that
// communicate say so. Nothing of the step path throws.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  // Tells all actuators to drop what a run kept for the rest of its step (Actuator::forget_run).
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

class Actuator {
 public:
  virtual ~Actuator() = default;

  // Returns the section of the settings that govern it: "memory" for memory.*.
  virtual const char* name() const = 0;

  // ---- Before the first round.

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
  // Returns whether the settings ask for something that only a plan can do; and what the program
  // gets when no loop carries plans out, as the end of a warning.
  virtual bool is_wanted() const { return false; }
  virtual std::string without() const { return {}; }
  // Adds what it can do to what the coordinator is told of the job.
  virtual void contribute(JobFacts&) const {}

  // ---- Calibration: measuring on a sample step before the first one.
  virtual bool wants_calibration() const { return false; }
  // Collective. Throws cox::Error, on all ranks when the settings cannot be met.
  virtual void calibrate(const SampleStep&, CalibrationHost&) {}
  // Drops what a run of a trial kept for the rest of its step.
  virtual void forget_run() {}
  // Begins the open step anew, after a calibration within it.
  virtual void restart_step() {}

  // ---- In every step. These do not communicate, block or throw.

  // Follows the plan of the round that begins; called in loops that carry plans out.
  virtual void apply(const Plan&, RoundId) {}
  virtual void begin_step() {}
  // Returns what must be equal on all ranks.
  virtual EqualBits equal_bits() const { return {}; }
  virtual void end_step(const StepEnd&, StepOutput&) {}
  // Fills fields of the report to the coordinator; called after end_step(), and once when the job
  // ends.
  virtual void sign(RankSignal&) const {}
  // Returns the next fragment to send, or one of kind `none` when there is none.
  virtual Fragment next_fragment() { return {}; }

  // Where equal_bits() differ: says more for the error that ends the job on all ranks. Collective.
  virtual std::string explain_difference(transport::Communicator&) { return {}; }

  // ---- Saves.

  // Returns the name of the row that is saved of every rank, null while none is; equal on all
  // ranks.
  virtual const SavedRow* saved_row() const { return nullptr; }
  virtual std::vector<double> save() const { return {}; }
  virtual Status load(std::span<const double>) { return ok_status(); }
};

// ActuatorList holds the actuators of a session in the order in which they are called. Owns those
// that exist from the start; a loop adds its own while it lives.
class ActuatorList {
 public:
  ActuatorList() = default;
  explicit ActuatorList(std::vector<std::unique_ptr<Actuator>> owned) : owned_(std::move(owned)) {
    for (const auto& each : owned_) all_.push_back(each.get());
  }

  void add(Actuator& actuator) { all_.push_back(&actuator); }
  void remove(Actuator& actuator) { std::erase(all_, &actuator); }

  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

  // REQUIRES: one of this type is in the list.
  template <class Kind>
  Kind& get() const {
    for (Actuator* each : all_) {
      if (auto* found = dynamic_cast<Kind*>(each)) return *found;
    }
    std::abort();
  }

 private:
  std::vector<std::unique_ptr<Actuator>> owned_;
  std::vector<Actuator*> all_;
};

// AddedActuator keeps an actuator in a list for as long as it lives.
class AddedActuator {
 public:
  AddedActuator(ActuatorList& list, Actuator& actuator) : list_(list), actuator_(actuator) {
    list_.add(actuator_);
  }
  ~AddedActuator() { list_.remove(actuator_); }
  AddedActuator(const AddedActuator&) = delete;
  AddedActuator& operator=(const AddedActuator&) = delete;

 private:
  ActuatorList& list_;
  Actuator& actuator_;
};

// Added is an actuator that is in a list for as long as it lives.
template <class Kind>
class Added {
 public:
  template <class... Parts>
  explicit Added(ActuatorList& list, Parts&&... parts)
      : actuator_(std::forward<Parts>(parts)...), added_(list, actuator_) {}

  Kind* operator->() { return &actuator_; }
  const Kind* operator->() const { return &actuator_; }

 private:
  Kind actuator_;
  AddedActuator added_;
};

}  // namespace cox::detail
