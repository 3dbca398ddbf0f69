// PrecisionSteering: the session's hand on number formats. Sets the format that the plan has for
// every block, and keeps the loss scaler, which moves in lockstep on all ranks. Owned by
// SessionState; training thread only; nothing here communicates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/loss_scale.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/precision_facts.h"
#include "coordinator/core/status.h"
#include "sdk/src/session/block_watch.h"

namespace cox::detail {

class PrecisionSteering {
 public:
  PrecisionSteering(const Config& config, BlockWatch& blocks);

  // Whether blocks may run in anything but the types of the program.
  bool is_wanted() const { return is_wanted_; }
  // What the plan may ask for: fp32, and what the devices of the model run or imitate.
  PrecisionSet formats() const { return formats_; }
  // Once, when the blocks are known and before the first round. invalid_argument for a rule that
  // fits no block and for a format that is asked for and cannot be run here.
  Status check(at::DeviceType device);
  // To what every rank can run.
  void restrict_to(PrecisionSet formats) { formats_ &= formats; }

  // At the beginning of every step; does something only when the plan asks for something else, and
  // nothing where the policy only observes.
  void follow(const Plan& plan);

  // What the losses of the open step are multiplied with; 1 while no block runs in fp16.
  float scale() const { return is_scaling_ ? scaler_->scale : 1.0f; }
  bool is_scaling() const { return is_scaling_; }
  // Now, or once the policy has chosen fp16.
  bool may_scale() const {
    return is_scaling_ || (is_steered_ && !config_.format && contains(formats_, Precision::fp16));
  }
  // The open step's reduction is over; `step` is equal on all ranks.
  void advance_scaler(const ScalerStep& step);

  // Saved and restored with the training state.
  std::optional<ScalerState> scaler() const { return scaler_; }
  void restore(const std::optional<ScalerState>& state) { scaler_ = state; }
  // Back to an earlier state, but to no larger scale than now: what overflowed since would again.
  void roll_back(const std::optional<ScalerState>& state);

  // Microseconds of every block in every format that can be run, from a few runs of `step`
  // (forward and backward of a sample). Leaves the formats of the plan followed, also on an error.
  Result<PrecisionFacts> measure(const std::function<Status()>& step);

 private:
  Status check_rules(std::span<const PrecisionRule> rules, const char* key) const;
  Status check_formats(at::DeviceType device) const;
  Status measure_format(std::size_t format, const std::function<Status()>& step,
                        PrecisionFacts& facts);

  const PrecisionConfig& config_;
  BlockWatch& blocks_;
  bool is_wanted_;
  bool is_steered_;  // not where the policy only observes: blocks then run as the program has them
  PrecisionSet formats_ = only(Precision::fp32);
  PrecisionSet emulated_ = 0;
  std::vector<Precision> followed_;
  ScalerRules rules_{};
  std::optional<ScalerState> scaler_;  // empty until a plan needs it
  bool is_scaling_ = false;
};

}  // namespace cox::detail
