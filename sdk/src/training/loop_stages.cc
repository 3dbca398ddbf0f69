#include "sdk/src/training/loop_stages.h"

namespace cox::detail {

void LoopStages::change(Stage stage, Time when) {
  if (stage_ == Stage::forward || stage_ == Stage::backward) recorder_.leave(when);
  if (stage_ == Stage::updating) {
    recorder_.leave(last_update_);
    recorder_.enter(Phase::data, last_update_);
    recorder_.leave(when);
  }
  stage_ = stage;
  if (stage == Stage::forward) recorder_.enter(Phase::forward, when);
  if (stage == Stage::backward) recorder_.enter(Phase::backward, when);
  if (stage == Stage::accumulated) update_since_.reset();
  if (stage == Stage::updating) recorder_.enter(Phase::optimizer, when);
}

void LoopStages::parameter_written() {
  last_update_ = now();
  const bool is_accumulated = stage_ == Stage::accumulated;
  change(Stage::updating, is_accumulated ? update_since_.value_or(last_update_) : last_update_);
}

void LoopStages::note_access(Access access) {
  const bool writes = access == Access::write;
  if (writes) last_update_ = now();
  if (!writes && read_since_ <= last_update_) read_since_ = now();
}

}  // namespace cox::detail
