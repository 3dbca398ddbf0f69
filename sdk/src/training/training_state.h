// Everything that makes a training run go on as if nothing had happened: parameters, buffers,
// optimizer state and the place in the data. TrainingSaves captures it for saves on the disk and
// for snapshots in memory. Random numbers need no state, because they are keyed by step and sample.
// Training thread only.
#pragma once

#include <ATen/core/Tensor.h>

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
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"

namespace cox::detail {

// RandomKey says what the random numbers of a forward pass are for: the job's seed, the step and
// the first sample of the share. They do not depend on what was drawn before, so a resumed or
// repeated step draws the same ones.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
};

// Mixes the three by the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(const RandomKey& key);

// Seeds torch's default generators.
void seed_default_generators(const RandomKey& key);

// Returns the tensors of a model by name: parameters, then buffers. They are live ones.
std::vector<NamedTensor> model_tensors(const torch::nn::Module& model);

// Returns what a save and a snapshot hold of these. Tensors may be live ones.
Checkpoint capture(const torch::nn::Module& model, const OptimizerPort& optimizer);
// Copies that back in place: parameters keep their identity.
Status restore(const Checkpoint& state, torch::nn::Module& model, OptimizerPort& optimizer);

struct Snapshot {
  RoundId round{};                        // taken after this round
  Checkpoint state;                       // copies
  std::vector<std::vector<double>> rows;  // what each actuator remembers on this rank
};

Snapshot take_snapshot(RoundId round, Checkpoint live);

// SnapshotShelf keeps the newest snapshots. It holds the same ones on all ranks, because all take
// them in the same rounds.
class SnapshotShelf {
 public:
  static constexpr std::size_t kKept = 2;
  void put(Snapshot snapshot);
  // Returns the newest one taken before `round`, null when there is none. Forgets newer ones.
  const Snapshot* newest_before(RoundId round);

 private:
  std::vector<Snapshot> snapshots_;  // oldest first
};

// Returns how much of the work beside steps each of `ranks` ranks can do, when these are slow and
// the others are alike. A rank that is slow in communication or its optimizer alone does as much as
// the others.
std::vector<std::uint32_t> paces_of(std::span<const SlowRank> slow, std::size_t ranks);

// Returns the same as every rank has it: by the plan's shares, or, where the plan does not divide
// the batch, by what the coordinator believes of the ranks now. Equal on all ranks. Collective.
// Throws cox::Error. REQUIRES: the control plane has started.
std::vector<std::uint32_t> agreed_paces(SessionState& state);

// Returns who writes the saves: rank 0, unless one of the first `at_hand` ranks has more than 1.25
// times its pace; then the first of the fastest of them. A rank that is slow would write slowly,
// too, and all ranks wait for a save.
RankId saver_of(std::span<const std::uint32_t> paces, std::size_t at_hand);

// TrainingSaves writes and reads a trainer's saves: on the disk (checkpoint.*), to resume from, and
// in memory (checkpoint.snapshot_rounds), to roll back to. Moves the position that the trainer gave
// it. Owned by a Trainer.
class TrainingSaves final : public Actuator, public Steering {
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

  void contribute(JobFacts& job) const override {
    job.capabilities.rollback = config().snapshot_rounds > 0;
  }
  void apply(const Plan& plan, RoundId) override;

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
  // all ranks, so from then on rank 0 writes every save.
  void add_part(std::string_view name, TrainingPart part) {
    is_written_by_root_ = true;
    add(name, std::move(part));
  }
  // The same for an object that is equal on all ranks and has state() and load_state().
  template <class Owner>
  void add_equal_part(std::string_view name, Owner& owner) {
    add(name, {.state = [&owner] { return owner.state(); },
               .load = [&owner](std::span<const NamedTensor> s) { return owner.load_state(s); }});
  }
  // Warns, on rank 0, of state in the save that nothing was added for.
  void warn_of_unclaimed();

  // Returns whether there is a folder and what came after the newest save is not in it.
  bool is_behind() const { return folder_ && saved_step_ != parts_.position.step; }
  // Throws cox::Error without a folder.
  void check_folder() const;
  enum class OnFailure { report, raise };
  // Writes a save of the state as it is, by the rank that saver_of() names. Collective. `raise`:
  // throws cox::Error on all ranks when it cannot be written; `report`: logs it. REQUIRES: a
  // folder.
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
  // A part as it was added.
  struct Part {
    std::string name;
    TrainingPart of;
  };
  // What the coordinator and the ranks give to a save beyond what they all have.
  struct Gathered {
    std::string control;  // the file of the coordinator's state; empty = none
    std::vector<NamedTensor> rows;
  };

  Checkpoint capture_all(const Reducer& reducer) const;
  void add(std::string_view name, TrainingPart part);
  Status open_folder(std::function<std::uint64_t()> random);
  Status check_unused() const;
  std::filesystem::path find_save();  // collective
  RankId choose_saver();              // collective
  Status check_weights() const;       // collective
  Result<Gathered> gather_for(RankId saver);
  Status write_here(const Reducer& reducer, Gathered gathered);
  std::vector<NamedTensor> part_states() const;
  static Status load_part(const Part& part, std::span<const NamedTensor> states);
  void adopt(const TrainingPosition& resumed);
  const CheckpointConfig& config() const { return state_.job().config().checkpoint; }
  bool is_reproducible() const { return state_.job().config().reduction.reproducible; }

  Parts parts_;
  SessionState& state_;
  LossScale& loss_scale_;  // its state goes with the position
  std::optional<CheckpointFolder> folder_;
  std::vector<Part> parts_added_;
  bool is_written_by_root_ = false;
  std::vector<NamedTensor> unclaimed_;  // of the resumed save: for parts that are not added yet
  SnapshotShelf snapshots_;
  RollbackOrder order_{};             // of the plan in force
  RankId saver_ = kRoot;              // of the last save
  std::uint32_t rollback_done_ = 0;   // the last ticket executed
  std::uint64_t saved_step_ = ~0ull;  // of the newest save
  AddedActuator<TrainingSaves> added_;
};

}  // namespace cox::detail
