// TrainingSaves writes the saves of a run to the disk and reads the one to resume from
// (checkpoint.*): the state of the loop, parts that the program adds, and the coordinator's state.
// The ranks divide what all of them have alike, and each writes its part; a periodic save makes no
// call to other ranks. Moves the position that the loop gave it. Owned by a loop; training thread
// only; calls that are collective say so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/estimates/slow_rank.h"
#include "coxswain/named_tensor.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/checkpoint/save_layout.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/shared_save.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {

// Returns how much of the work beside steps each of `ranks` ranks can do, when these are slow and
// the others are alike. A rank that is slow in communication or its optimizer alone does as much as
// the others.
std::vector<std::uint32_t> paces_of(std::span<const SlowRank> slow, std::size_t ranks);

// Returns the same as every rank has it: by the plan's shares, or, where the plan does not divide
// the batch, by what the coordinator believes of the ranks now. Equal on all ranks. Collective.
// Throws cox::Error. REQUIRES: the control plane has started.
std::vector<std::uint32_t> agreed_paces(SessionState& state);

// Refuses, before the first step, a model that no save could hold. Collective. Throws cox::Error on
// all ranks.
void check_model(const Membership& job, std::span<const NamedTensor> model);
// Tells, on rank 0, of parameters of the optimizer that the model does not have: saves hold their
// state by place, and not their values.
void tell_unnamed(const Membership& job, const OptimizerPort& optimizer);

class TrainingSaves {
 public:
  // All of it must outlive this. `position` is written by resume().
  struct Parts {
    Session& session;
    TrainedState& trained;
    TrainingPosition& position;
  };
  // Opens checkpoint.directory, if one is set. Collective. Throws cox::Error, on all ranks, when it
  // cannot be used or holds the saves of a run that is not to be resumed.
  explicit TrainingSaves(const Parts& parts);
  TrainingSaves(const TrainingSaves&) = delete;
  TrainingSaves& operator=(const TrainingSaves&) = delete;

  // State for parts that are made after resume(): both empty for a save without it.
  struct Resumed {
    std::vector<NamedTensor> reducer;
    std::vector<NamedTensor> rows;  // of the actuators
  };
  // Takes over the newest whole save; damaged ones after it are set aside, with a line in the log
  // (checkpoint.strict refuses). Collective. Throws cox::Error on all ranks when there is none or
  // it is another job's. REQUIRES: checkpoint.resume.
  Resumed resume();

  // As Trainer::add_state(). Throws cox::Error. A part of the program's own need not be equal on
  // all ranks, so a save has rank 0's.
  void add_part(std::string_view name, TrainingPart part) {
    add({std::string(name), std::move(part), OwnTensors::of_root});
  }
  // The same for an object that is equal on all ranks and has state() and load_state().
  template <class Owner>
  void add_equal_part(std::string_view name, Owner& owner) {
    TrainingPart part{
        .state = [&owner] { return owner.state(); },
        .load = [&owner](std::span<const NamedTensor> s) { return owner.load_state(s); }};
    add({std::string(name), std::move(part), OwnTensors::of_nobody});
  }
  // Warns, on rank 0, of state in the save that nothing was added for.
  void warn_of_unclaimed();

  // Returns whether there is a folder and what came after the newest save is not in it.
  bool is_behind() const {
    return folder_ && (saved_step_ != parts_.position.step || !save_.lost().ok());
  }
  // Returns whether checkpoint.every_steps asks for a save of the state as it is.
  bool is_due() const;
  // The state went back to an earlier step, on all ranks: a save that is being written is given up.
  void fall_behind();
  // Throws cox::Error without a folder.
  void check_folder() const;
  enum class OnFailure { report, raise };
  // Writes a save of the state as it is. Every rank calls it. `raise`: collective; returns once the
  // save is there, and throws cox::Error on all ranks when that is impossible. `report`: copies
  // this rank's part, writes it beside the next steps, and logs what fails; a job with a memory
  // budget has no room for copies, and writes the part before it goes on. Waits for a save that is
  // still being written, which is collective. REQUIRES: a folder.
  void write(OnFailure on_failure);
  // Waits for the save that is being written, if there is one. Collective where there is one.
  // Throws cox::Error on all ranks when the newest save failed.
  void settle();

  // Returns the loop's state with the parts. Tensors may be live ones.
  Checkpoint capture() const;
  // Copies the parts of a state that capture() gave back in place. Local.
  Status restore_parts(const Checkpoint& state) const;
  // Bytes of the parts that were added so far.
  std::int64_t part_bytes() const;

 private:
  // A part as it was added.
  struct Part {
    std::string name;
    TrainingPart of;
    OwnTensors own;  // of_nobody: equal on all ranks
  };

  void add(Part part);
  Status open_folder(std::function<std::uint64_t()> random);
  Status check_unused() const;
  Checkpoint read_newest();  // collective
  Status find_save(const std::function<Status(std::uint64_t step)>& read_step);
  void check_weights() const;  // collective
  bool is_finite();
  std::string own_not_finite() const;
  bool is_alone() const { return state_.job().world_size() == 1; }
  void begin(OnFailure on_failure);
  Checkpoint shared_state() const;
  Checkpoint own_state(Checkpoint& shared) const;
  OwnTensorsOfKinds own_kinds(const Checkpoint& shared, const Checkpoint& own) const;
  std::vector<std::uint32_t> paces() const;
  Result<std::string> control_file() const;
  void finish_before();  // collective
  bool has_budget() const;
  std::vector<NamedTensor> part_states(OwnTensors own) const;
  static Status load_part(const Part& part, std::span<const NamedTensor> states);
  void take_what_fits(Checkpoint& saved);
  void adopt(const TrainingPosition& resumed);
  const CheckpointConfig& config() const { return state_.job().config().checkpoint; }

  Parts parts_;
  SessionState& state_;
  LossScale& loss_scale_;  // its state goes with the position
  std::optional<CheckpointFolder> folder_;
  std::vector<Part> parts_added_;
  std::vector<NamedTensor> unclaimed_;  // of the resumed save: for parts that are not added yet
  std::uint64_t saved_step_ = ~0ull;    // of the newest save that was begun
  std::vector<std::uint32_t> agreed_paces_;  // when ranks were last asked; empty = never
  SharedSave save_;                          // after what its thread uses
};

}  // namespace cox::detail
