// TrainingSaves writes the saves of a run to the disk and reads the one to resume from
// (checkpoint.*). A save holds the state of the loop, parts that the program adds, and the
// coordinator's state. The ranks divide the state that is equal on all of them, and each rank
// writes its part. A periodic save makes no call to other ranks. Updates the position that the loop
// passes in. Owned by a loop; training thread only; collective calls say so.
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

// Returns the relative speed of each of `ranks` ranks at work beside steps, if the ranks of `slow`
// are slow and the others are equal. A rank that is slow only in communication or in its optimizer
// counts as fast as the others.
std::vector<std::uint32_t> paces_of(std::span<const SlowRank> slow, std::size_t ranks);

// Returns the relative speeds on which all ranks agree. The speeds are the plan's shares; if the
// plan does not divide the batch, the coordinator's present estimates are used. Collective. Throws
// cox::Error. REQUIRES: the control plane has started.
std::vector<std::uint32_t> agreed_paces(SessionState& state);

// Refuses, before the first step, a model that no save can hold. Collective. Throws cox::Error on
// all ranks.
void check_model(const Membership& job, std::span<const NamedTensor> model);
// Logs, on rank 0, the optimizer's parameters that the model does not have. Saves hold the state of
// such parameters by position, and not their values.
void tell_unnamed(const Membership& job, const OptimizerPort& optimizer);

class TrainingSaves {
 public:
  // REQUIRES: all parts outlive the TrainingSaves. resume() writes `position`.
  struct Parts {
    Session& session;
    TrainedState& trained;
    TrainingPosition& position;
  };
  // Opens checkpoint.directory, if set. Collective. Throws cox::Error on all ranks if the directory
  // cannot be used, or holds the saves of a run that is not to be resumed.
  explicit TrainingSaves(const Parts& parts);
  TrainingSaves(const TrainingSaves&) = delete;
  TrainingSaves& operator=(const TrainingSaves&) = delete;

  // State for parts that are made after resume(). Both lists are empty if the save has no such
  // state.
  struct Resumed {
    std::vector<NamedTensor> reducer;
    std::vector<NamedTensor> rows;  // the actuators' rows
  };
  // Loads the newest whole save. Damaged newer saves are set aside, with a line in the log
  // (checkpoint.strict refuses). Collective. Throws cox::Error on all ranks if there is no save, or
  // if the save belongs to another job. REQUIRES: checkpoint.resume.
  Resumed resume();

  // Adds a part as Trainer::add_state() does. Throws cox::Error. A part of the program's own need
  // not be equal on all ranks, so a save holds rank 0's.
  void add_part(std::string_view name, TrainingPart part) {
    add({std::string(name), std::move(part), OwnTensors::of_root});
  }
  // Adds an object with state() and load_state() that is equal on all ranks.
  template <class Owner>
  void add_equal_part(std::string_view name, Owner& owner) {
    TrainingPart part{
        .state = [&owner] { return owner.state(); },
        .load = [&owner](std::span<const NamedTensor> s) { return owner.load_state(s); }};
    add({std::string(name), std::move(part), OwnTensors::of_nobody});
  }
  // Warns, on rank 0, of state in the save that no add call has claimed.
  void warn_of_unclaimed();

  // Returns whether there is a folder whose newest save is older than the present state.
  bool is_behind() const {
    return folder_ && (saved_step_ != parts_.position.step || !save_.lost().ok());
  }
  // Returns whether checkpoint.every_steps asks for a save of the state as it is.
  bool is_due() const;
  // Abandons a save that is being written, because the state went back to an earlier step on all
  // ranks.
  void fall_behind();
  // Throws cox::Error without a folder.
  void check_folder() const;
  enum class OnFailure { report, raise };
  // Writes a save of the present state. Every rank calls write(). Waits for an earlier save that is
  // still being written, which is collective. REQUIRES: a folder.
  // - `raise`: collective. Returns once the save is complete, or throws cox::Error on all ranks.
  // - `report`: copies this rank's part, writes the copy beside the next steps, and logs failures.
  //   A job with a memory budget has no room for copies, and writes the part before it continues.
  void write(OnFailure on_failure);
  // Waits for the save that is being written, if any. Collective if there is one. Throws cox::Error
  // on all ranks if the newest save failed.
  void settle();

  // Returns the loop's state with the parts. Tensors may be live ones.
  Checkpoint capture() const;
  // Copies the parts of a state from capture() back. Local.
  Status restore_parts(const Checkpoint& state) const;
  // Returns the bytes of the parts that were added so far.
  std::int64_t part_bytes() const;

 private:
  // A part as the program added it.
  struct Part {
    std::string name;
    TrainingPart of;
    OwnTensors own;  // the value of_nobody means equal on all ranks
  };

  void add(Part part);
  Status open_folder(std::function<std::uint64_t()> random);
  Status check_unused() const;
  Checkpoint read_newest();  // collective
  Status find_save(const std::function<Status(std::uint64_t step)>& read_step);
  void check_weights() const;  // collective
  bool is_finite();
  Status check_parts() const;
  void lose(const Status& why);
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
  LossScale& loss_scale_;  // state saved with the position
  std::optional<CheckpointFolder> folder_;
  std::vector<Part> parts_added_;
  std::vector<NamedTensor> unclaimed_;  // from the resumed save: for parts that are not added yet
  std::uint64_t saved_step_ = ~0ull;    // step of the newest save that was begun
  std::vector<std::uint32_t> agreed_paces_;  // when ranks were last asked; empty = never
  SharedSave save_;                          // last member, because its thread uses the others
};

}  // namespace cox::detail
