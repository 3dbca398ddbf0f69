#include "sdk/src/training/rollbacks.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {

void SnapshotShelf::put(Snapshot snapshot) {
  if (snapshots_.size() == kKept) snapshots_.erase(snapshots_.begin());
  snapshots_.push_back(std::move(snapshot));
}

const Snapshot* SnapshotShelf::newest_before(RoundId round) {
  std::erase_if(snapshots_, [&](const Snapshot& s) { return s.round >= round; });
  return snapshots_.empty() ? nullptr : &snapshots_.back();
}

Rollbacks::Rollbacks(const Parts& parts)
    : parts_(parts),
      state_(parts.session.state()),
      loss_scale_(parts.session.capabilities().loss_scale),
      added_(state_.actuators(), *this) {}

void Rollbacks::keep_snapshot(RoundId round) {
  const std::uint32_t every = config().snapshot_rounds;
  if (every == 0 || round.value() % every != 0) return;
  Checkpoint rest = parts_.saves.capture();
  rest.model.clear();
  rest.optimizer.clear();
  Snapshot snapshot{round, parts_.trained.remember(), copied(std::move(rest))};
  for (const Saving* each : state_.actuators().all<Saving>()) snapshot.rows.push_back(each->save());
  snapshots_.put(std::move(snapshot));
}

void Rollbacks::roll_back_if_ordered(Reducer& reducer) {
  if (order_.ticket <= done_) return;
  done_ = order_.ticket;
  const Snapshot* snapshot = snapshots_.newest_before(order_.before_round);
  if (snapshot == nullptr) {
    state_.job().log().warning(
        "the guard ordered a rollback, but no snapshot is from before the trouble; training "
        "continues without the rollback");
    return;
  }
  TrainingPosition& position = parts_.position;
  const std::uint64_t rollbacks = position.rollbacks + 1;
  require(snapshot->put_back(), "rollback");
  if (is_reproducible()) state_.job().agree(reducer.load_state(snapshot->rest.reducer));
  require(parts_.saves.restore_parts(snapshot->rest), "rollback");
  auto row = snapshot->rows.begin();
  for (Saving* each : state_.actuators().all<Saving>()) {
    static_cast<void>(each->load(*row++));  // written by this actuator, so it fits
  }
  position = snapshot->rest.position;
  parts_.saves.fall_behind();
  loss_scale_.roll_back(position.scaler);
  position.scaler = loss_scale_.state();
  position.rollbacks = rollbacks;
  state_.recorder().notes().set(SignalFlag::rolled_back);
  state_.job().log().info("rolled back to step " + std::to_string(position.step));
}

std::int64_t Rollbacks::bytes(std::int64_t state_bytes) const {
  if (config().snapshot_rounds == 0) return 0;
  return (state_bytes + parts_.saves.part_bytes()) *
         static_cast<std::int64_t>(SnapshotShelf::kKept);
}

}  // namespace cox::detail
