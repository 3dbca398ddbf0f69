// Rollbacks keeps snapshots of a trainer's state in memory (checkpoint.snapshot_rounds) and
// restores one when a plan orders a rollback. All ranks take snapshots in the same rounds, so all
// ranks hold the same ones. Owned by a Trainer; training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/training_saves.h"

namespace cox::detail {

struct Snapshot {
  RoundId round{};                   // taken after this round
  std::function<Status()> put_back;  // the model and its optimizer (TrainedState::remember)
  Checkpoint rest = {};              // copies of everything else
  std::vector<std::vector<double>> rows = {};  // state of each actuator on this rank
};

// SnapshotShelf keeps the newest snapshots.
class SnapshotShelf {
 public:
  static constexpr std::size_t kKept = 2;
  void put(Snapshot snapshot);
  // Returns the newest snapshot taken before `round`, or null. Drops newer ones.
  const Snapshot* newest_before(RoundId round);

 private:
  std::vector<Snapshot> snapshots_;  // oldest first
};

class Rollbacks final : public Actuator, public Steering {
 public:
  // REQUIRES: all parts outlive the Rollbacks. roll_back_if_ordered() writes `position`.
  struct Parts {
    Session& session;
    TrainedState& trained;
    TrainingPosition& position;
    TrainingSaves& saves;
  };
  explicit Rollbacks(const Parts& parts);

  void contribute(JobFacts& job) const override {
    job.capabilities.rollback = config().snapshot_rounds > 0;
  }
  void apply(const Plan& plan, RoundId) override { order_ = plan.rollback; }

  // Takes a snapshot if one is due after `round`. Local.
  void keep_snapshot(RoundId round);
  // Restores a snapshot if a plan since the last call orders a rollback. The decision is equal on
  // all ranks, and a rollback is collective. Throws cox::Error.
  void roll_back_if_ordered(Reducer& reducer);
  // Marks orders up to `ticket` as carried out by an earlier process.
  void start_after(std::uint32_t ticket) { done_ = ticket; }
  // Returns the bytes that snapshots will hold from some later step on. `state_bytes` is the size
  // of model and optimizer state.
  std::int64_t bytes(std::int64_t state_bytes) const;

 private:
  const CheckpointConfig& config() const { return state_.job().config().checkpoint; }
  bool is_reproducible() const { return state_.job().config().reduction.reproducible; }

  Parts parts_;
  SessionState& state_;
  LossScale& loss_scale_;  // state saved with the position
  SnapshotShelf snapshots_;
  RollbackOrder order_{};   // from the plan in force
  std::uint32_t done_ = 0;  // the last ticket executed
  AddedActuator<Rollbacks> added_;
};

}  // namespace cox::detail
