#include "sdk/src/precision/loss_scale.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "metrics/records/step_row.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/precision/format_actuator.h"

namespace cox::detail {

void LossScale::apply(const Plan& plan, RoundId) {
  rules_ = plan.scaler;
  follow_formats();
}

// A calibration may have chosen other formats.
void LossScale::restart_step() {
  follow_formats();
  begin_step();
}

void LossScale::follow_formats() {
  const bool was_active = is_active_;
  is_active_ = blocks_.followed() != nullptr && formats_.has(Precision::fp16);
  if (!is_active_ || was_active) return;
  if (!state_) state_ = initial_state(rules_);
  // A save may come from a run with other bounds.
  state_->scale = std::clamp(state_->scale, rules_.min_scale, rules_.max_scale);
}

EqualBits LossScale::equal_bits() const {
  return {"the loss scale", std::bit_cast<std::uint32_t>(factor())};
}

void LossScale::end_step(const StepEnd&, StepOutput& output) {
  if (output.row != nullptr && of_round_ > 0) output.row->loss_scale = of_round_;
}

bool LossScale::may_be_active() const {
  return is_active_ || formats_.may_choose(Precision::fp16);
}

void LossScale::advance(const ScalerStep& step) {
  if (is_active_) state_ = cox::advance(*state_, rules_, step);
}

void LossScale::roll_back(const std::optional<ScalerState>& state) {
  if (!state) return;  // the snapshot is older than the first fp16 block
  const float most = state_ ? state_->scale : state->scale;
  state_ = state;
  state_->scale = std::min(state_->scale, most);
}

}  // namespace cox::detail
