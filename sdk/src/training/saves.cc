#include "sdk/src/training/saves.h"

#include <torch/torch.h>

#include <string>
#include <utility>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

TrainingSaves::TrainingSaves(const Parts& parts)
    : parts_(parts),
      state_(parts.session.state()),
      formats_(state_.actuators().get<FormatActuator>()) {
  Status status;
  if (!config().directory.empty()) {
    auto opened = CheckpointFolder::open(config().directory);
    if (opened.ok()) {
      folder_.emplace(std::move(*opened));
      status = check_unused();
    } else {
      status = opened.status();
    }
  } else if (config().resume) {
    status = invalid_argument(
        "checkpoint.resume: expected checkpoint.directory to resume from, found none; set it to "
        "the folder of the earlier run");
  }
  state_.job().agree(status);
}

// A run that starts afresh must not mix its saves with another's, let alone remove those.
Status TrainingSaves::check_unused() const {
  const auto newest = folder_->newest();
  if (config().resume || !newest) return ok_status();
  return failed_precondition("checkpoint.directory: expected a folder without saves, found " +
                             newest->string() +
                             "; set checkpoint.resume=on to go on from it, or another folder");
}

TrainingSaves::Resumed TrainingSaves::resume() {
  const auto newest = folder_->newest();
  Status status;
  std::optional<Checkpoint> checkpoint;
  if (newest) {
    auto read = CheckpointFolder::read(*newest);
    if (read.ok()) {
      checkpoint.emplace(std::move(*read));
    } else {
      status = read.status();
    }
  } else {
    status = not_found("checkpoint.resume: expected a save in " + config().directory +
                       ", found none; start without checkpoint.resume");
  }
  state_.job().agree(status);
  parts_.session.together([&] { take_over(*checkpoint); });
  adopt(checkpoint->position);
  if (state_.job().rank() == kRoot) {
    auto control = CheckpointFolder::read_control(*newest);
    if (control.ok()) {
      state_.control().restore(std::move(*control));
    } else {
      state_.job().log().warning("the coordinator starts afresh: " + control.status().text());
    }
    state_.job().log().info("resumed at step " + std::to_string(parts_.position.step));
  }
  return {std::move(checkpoint->reducer), std::move(checkpoint->numbers)};
}

void TrainingSaves::take_over(const Checkpoint& checkpoint) {
  const auto targets = model_tensors(parts_.model);
  Status loaded = load_into(targets, checkpoint.model);
  if (loaded.ok()) loaded = parts_.optimizer.load_state(checkpoint.optimizer);
  if (!loaded.ok()) throw Error(loaded.with_context("resume"));
}

// The cursor of a save is a place in one order of samples.
void TrainingSaves::check_resumed(const TrainingPosition& resumed) const {
  const auto steps = gather_numbers(state_.job().data(), resumed.step);
  if (!steps.ok()) throw Error(steps.status());
  const std::string different = ranks_that_differ(*steps);
  if (!different.empty()) {
    throw Error(failed_precondition("resume: expected all ranks to see the same newest save, "
                                    "found another on rank " +
                                    different + "; the folder must be shared"),
                Error::Scope::all_ranks);
  }
  const std::uint64_t seed = state_.job().config().run.seed;
  if (!resumed.seed || *resumed.seed == seed) return;
  throw Error(failed_precondition("resume: expected run.seed=" + std::to_string(*resumed.seed) +
                                  ", with which the save was made, found " + std::to_string(seed) +
                                  "; another seed gives samples another order"),
              Error::Scope::all_ranks);
}

void TrainingSaves::adopt(const TrainingPosition& resumed) {
  check_resumed(resumed);
  parts_.position = resumed;
  formats_.restore(resumed.scaler);
  saved_step_ = resumed.step;
  state_.step().set_next(StepId(resumed.step));
  state_.control().go_on_at(StepId(resumed.step));
}

void TrainingSaves::check_folder() const {
  if (folder_) return;
  throw Error(failed_precondition("save: expected a folder in checkpoint.directory, found none; "
                                  "set it to where checkpoints are to go"),
              Error::Scope::all_ranks);
}

void TrainingSaves::write(const Reducer& reducer, OnFailure on_failure) {
  Status written;
  state_.control().flush_rows();
  std::vector<NamedTensor> rows = state_.saved_rows();
  if (state_.job().rank() == kRoot) {
    Checkpoint checkpoint;
    checkpoint.position = parts_.position;
    checkpoint.model = model_tensors(parts_.model);
    checkpoint.optimizer = parts_.optimizer.state();
    checkpoint.reducer = reducer.state();
    checkpoint.numbers = std::move(rows);
    const auto control = state_.control().state();
    written = folder_->write(checkpoint, control ? &*control : nullptr, config().keep);
    if (!written.ok() && on_failure == OnFailure::report)
      state_.job().log().error(written.message());
  }
  if (on_failure == OnFailure::raise) state_.job().agree(written);
  saved_step_ = parts_.position.step;
}

void TrainingSaves::keep_snapshot(RoundId round, const Reducer& reducer) {
  const std::uint32_t every = config().snapshot_rounds;
  if (every == 0 || round.value() % every != 0) return;
  Snapshot snapshot = take_snapshot(round, parts_.position, parts_.model, parts_.optimizer);
  if (is_reproducible()) snapshot.reducer = reducer.state();
  for (const Actuator* actuator : state_.actuators()) snapshot.rows.push_back(actuator->save());
  snapshots_.put(std::move(snapshot));
}

void TrainingSaves::roll_back_if_ordered(Reducer& reducer) {
  if (order_.ticket <= rollback_done_) return;
  rollback_done_ = order_.ticket;
  const Snapshot* snapshot = snapshots_.newest_before(order_.before_round);
  if (snapshot == nullptr) {
    state_.job().log().warning(
        "a rollback was ordered, but no snapshot is old enough; training goes on");
    return;
  }
  TrainingPosition& position = parts_.position;
  const std::uint64_t rollbacks = position.rollbacks + 1;
  const Status restored = restore(*snapshot, parts_.model, parts_.optimizer);
  if (!restored.ok()) throw Error(restored.with_context("rollback"));
  if (is_reproducible()) state_.job().agree(reducer.load_state(snapshot->reducer));
  auto row = snapshot->rows.begin();
  for (Actuator* actuator : state_.actuators()) {
    static_cast<void>(actuator->load(*row++));  // its own, so it fits
  }
  position = snapshot->position;
  saved_step_ = ~0ull;  // what is on the disk of later steps was given up
  formats_.roll_back(position.scaler);
  position.scaler = formats_.scaler();
  position.rollbacks = rollbacks;
  state_.step().recorder().flag(SignalFlag::rolled_back);
  state_.job().log().info("rolled back to step " + std::to_string(position.step));
}

std::int64_t TrainingSaves::snapshot_bytes() const {
  if (config().snapshot_rounds == 0) return 0;
  std::int64_t bytes = parts_.optimizer.state_bytes() + parts_.optimizer.bytes_to_come();
  for (const NamedTensor& named : model_tensors(parts_.model)) {
    bytes += static_cast<std::int64_t>(named.tensor.nbytes());
  }
  return bytes * static_cast<std::int64_t>(SnapshotShelf::kKept);
}

}  // namespace cox::detail
