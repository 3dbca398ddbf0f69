// TrainingSaves: a trainer's hand on its saves: on the disk (checkpoint.*), to resume from, and in
// memory (checkpoint.snapshot_rounds), to roll back to. Moves the position that the trainer gave
// it. Owned by a Trainer; training thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/named_tensor.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/checkpoint/training_position.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {

class TrainingSaves final : public Actuator {
 public:
  // All of it must outlive this. `position` is written by resume() and roll_back_if_ordered().
  struct Parts {
    Session& session;
    torch::nn::Module& model;
    OptimizerPort& optimizer;
    TrainingPosition& position;
  };
  // Opens checkpoint.directory, if one is set. Collective. Throws cox::Error, on all ranks, when it
  // cannot be used or holds the saves of a run that is not to be resumed.
  explicit TrainingSaves(const Parts& parts);

  const char* name() const override { return "checkpoint"; }
  void contribute(JobFacts& job) const override {
    job.capabilities.rollback = config().snapshot_rounds > 0;
  }
  void apply(const Plan& plan, RoundId) override { order_ = plan.rollback; }

  // State for parts that are made after resume(): both empty for a save without it.
  struct Resumed {
    std::vector<NamedTensor> reducer;
    std::vector<NamedTensor> rows;  // of the actuators
  };
  // Takes over the newest whole save. Collective. Throws cox::Error on all ranks when there is
  // none, it is damaged or another job's. REQUIRES: checkpoint.resume.
  Resumed resume();

  bool has_folder() const { return folder_.has_value(); }
  bool is_saved() const { return saved_step_ == parts_.position.step; }
  // Throws cox::Error without a folder.
  void check_folder() const;
  enum class OnFailure { report, raise };
  // Writes a save of the state as it is. Collective. `raise`: throws cox::Error on all ranks when
  // it cannot be written; `report`: logs it. REQUIRES: a folder.
  void write(const Reducer& reducer, OnFailure on_failure);

  // Keeps a snapshot where one is due after `round`. Local.
  void keep_snapshot(RoundId round, const Reducer& reducer);
  // Goes back to a snapshot when a plan since the last call orders it; equal on all ranks. Throws
  // cox::Error.
  void roll_back_if_ordered(Reducer& reducer);
  // Orders up to this ticket were carried out by an earlier process.
  void start_after(std::uint32_t ticket) { rollback_done_ = ticket; }
  // Bytes that snapshots will hold from some later step on.
  std::int64_t snapshot_bytes() const;

 private:
  Status check_unused() const;
  void take_over(const Checkpoint& checkpoint);
  void check_resumed(const TrainingPosition& resumed) const;  // collective
  void adopt(const TrainingPosition& resumed);                // collective
  const CheckpointConfig& config() const { return state_.job().config().checkpoint; }
  bool is_reproducible() const { return state_.job().config().reduction.reproducible; }

  Parts parts_;
  SessionState& state_;
  FormatActuator& formats_;  // its scaler goes with the position
  std::optional<CheckpointFolder> folder_;
  SnapshotShelf snapshots_;
  RollbackOrder order_{};             // of the plan in force
  std::uint32_t rollback_done_ = 0;   // the last ticket executed
  std::uint64_t saved_step_ = ~0ull;  // of the newest save
};

}  // namespace cox::detail
