// LossScale is the actuator of the loss scaler, which moves in lockstep on all ranks. In a loop of
// ours (a Trainer, Reducer or ManualParallel with the model) losses are scaled while blocks run in
// fp16. All ranks have an equal state, so a save stores it with the training state, not in each
// rank's row. Training thread only.
#pragma once

#include <optional>

#include "coordinator/core/loss_scale.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

class BlockWatch;
class FormatActuator;

class LossScale final : public Steering, public Reporting, public Comparing {
 public:
  // `formats` precedes the loss scale in the list of actuators. Both arguments outlive it.
  LossScale(const FormatActuator& formats, const BlockWatch& blocks)
      : formats_(formats), blocks_(blocks) {}

  const char* name() const override { return "the loss scale"; }
  void apply(const Plan& plan, RoundId round) override;
  void begin_step() override { of_round_ = is_active_ ? factor() : 0; }
  void restart_step() override;
  EqualBits equal_bits() const override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override { signal.loss_scale = of_round_; }

  // Returns the factor of the open step's losses; 1 while no block runs in fp16.
  float factor() const { return is_active_ ? state_->scale : 1.0f; }
  // Returns whether losses are scaled now.
  bool is_active() const { return is_active_; }
  // Returns whether losses are scaled now, or may be after the policy chooses fp16.
  bool may_be_active() const;
  // Moves the scale after the open step's reduction; `step` is equal on all ranks.
  void advance(const ScalerStep& step);

  // Returns nothing until a plan needs the scaler.
  std::optional<ScalerState> state() const { return state_; }
  void restore(const std::optional<ScalerState>& state) { state_ = state; }
  // Returns to an earlier state but never to a larger scale, which would overflow again.
  void roll_back(const std::optional<ScalerState>& state);

 private:
  void follow_formats();

  const FormatActuator& formats_;
  const BlockWatch& blocks_;
  ScalerRules rules_{};
  std::optional<ScalerState> state_;
  bool is_active_ = false;
  float of_round_ = 0;  // 0: no scaler at work
};

}  // namespace cox::detail
