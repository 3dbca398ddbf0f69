// LossScaler keeps fp16 gradients in range in a loop of your own. It multiplies the loss before
// backward, divides the gradients again before the optimizer sees them, skips a step whose
// gradients are not finite, and adapts the scale to what it saw (rules: ScalerRules in
// coordinator/core/loss_scale.h). Reducer and Trainer scale by themselves; this is for loops
// without them.
//
//   cox::LossScaler scaler;                  // or (rules), or (session, rules)
//   ...
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);               // only to look at gradients, or to clip them
//   bool updated = scaler.step(optimizer);   // unscales unless that was done
//   scaler.update();                         // once a step, after every optimizer
//
// With hysteresis 1, min_scale 0 and a max_scale that is not reached it does step by step what
// torch.amp.GradScaler does. ScalerRules::headroom_bits has no effect: gradients are fp32 here.
// Several optimizers: each steps or skips by its own gradients; update() counts all of them, also
// one that was unscaled and then not stepped, by the program's own choice.
//
// Parameters are fp32 (bf16 and fp64 work too); gradients in fp16 are refused, because what is
// below fp16's range is lost in them already. The scaler holds no parameters. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/loss_scale.h"
#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace torch::optim {
class Optimizer;
}

namespace cox {

class AdamW;
class Session;

// ScalerSync says where step() decides whether to skip the update.
enum class ScalerSync {
  host,    // step() reads one number from the device: any optimizer, all rules, several ranks
  device,  // nothing is read: step() of cox::AdamW only, one rank, parameters on one device, rules
           // with hysteresis 1 and a finite max_scale x growth_factor
};

class LossScaler {
 public:
  // Throws cox::Error for rules out of range, or that ScalerSync::device cannot follow.
  explicit LossScaler(ScalerRules rules = {}, ScalerSync sync = ScalerSync::host);
  // Ranks agree in step(): all skip when one has to. step() and is_finite() are then collective, in
  // the same order on all ranks (one all-reduce of 8 bytes), and so is update() for gradients that
  // were unscaled and not stepped. The session must outlive the scaler.
  explicit LossScaler(Session& session, ScalerRules rules = {});
  LossScaler(LossScaler&&) noexcept;
  LossScaler& operator=(LossScaler&&) noexcept;
  ~LossScaler();

  // Returns loss x scale, in fp32 or fp64, on the loss's device. Autograd records it.
  at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients by the scale, in place, and notes whether all are finite. At most once an
  // optimizer between two update(). An optimizer none of whose parameters has a gradient has finite
  // ones. Throws cox::Error on a second time, after step(), on fp16 or sparse gradients, and with
  // ScalerSync::device when no parameter has a gradient.
  void unscale(AdamW& optimizer);
  void unscale(torch::optim::Optimizer& optimizer);
  // For an optimizer of another kind: step it yourself if is_finite(), then update().
  void unscale(std::span<const at::Tensor> parameters);

  // Updates the parameters unless a gradient is not finite; returns whether it did (with
  // ScalerSync::device always true, because nothing is read). Throws cox::Error when called twice
  // before update().
  bool step(AdamW& optimizer);
  bool step(torch::optim::Optimizer& optimizer);
  // Returns whether the gradients given to unscale(parameters) are finite on all ranks. Reads the
  // device.
  bool is_finite();

  // Sets the scale for the next step, by all gradients that were unscaled since the last update().
  // Throws cox::Error where none were.
  void update();

  // Returns the scale now, and what else the scaler remembers. With ScalerSync::device this reads
  // the device.
  ScalerState value() const;
  const ScalerRules& rules() const { return rules_; }

  // Returns copies of "loss_scaler.scale" (float32), "loss_scaler.clean_steps" and
  // "loss_scaler.overflow_streak" (int64), one element each, on the CPU. Rules are the job's
  // configuration, not state.
  std::vector<NamedTensor> state() const;
  // Takes over such a list. Returns invalid_argument for another kind of state, other shapes or
  // types, or a scale out of [min_scale, max_scale], and failed_precondition between unscale() and
  // update(); then it changes nothing.
  Status load_state(std::span<const NamedTensor> state);

 private:
  struct Unit;
  struct OnDevice;

  Unit& unit_of(const void* owner);
  void unscale_unit(Unit& unit, const std::vector<at::Tensor>& parameters);
  void prepare(Unit& unit, const std::vector<at::Tensor>& parameters);
  bool settle(Unit& unit);
  bool agree(bool found);
  OnDevice& on_device(const at::Device& device);
  void update_on_device();

  ScalerRules rules_;
  ScalerState state_;
  ScalerSync sync_;
  Session* session_ = nullptr;
  std::unique_ptr<OnDevice> on_device_;  // ScalerSync::device, from the first loss on
  std::vector<Unit> units_;              // one an optimizer, since the last update()
};

}  // namespace cox
