// LossScaler keeps fp16 gradients in range in a loop of your own. The scaler multiplies the loss
// before backward and divides the gradients before the optimizer reads them. A step whose gradients
// are not finite is skipped, and the scale adapts (ScalerRules in coordinator/core/loss_scale.h).
// Reducer and Trainer scale by themselves and need no LossScaler.
//
//   cox::LossScaler scaler;                  // or (rules), or (session, rules)
//   ...
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);               // optional: to read or clip true gradients
//   bool updated = scaler.step(optimizer);   // unscales unless that was done
//   scaler.update();                         // once a step, after every optimizer
//
// With hysteresis 1, min_scale 0 and a max_scale that is not reached, the scaler behaves step by
// step as torch.amp.GradScaler. ScalerRules::headroom_bits has no effect, because the gradients are
// not fp16. Each of several optimizers steps or skips by its own gradients. update() counts all
// optimizers, also one that was unscaled and then not stepped by the program's own choice.
//
// Gradients are fp32, bf16 or fp64, as their parameters. Gradients in fp16 are refused, because
// values below the range of fp16 are already lost. The scaler holds no parameters. Thread rule: the
// training thread.
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

// ScalerSync selects where step() decides whether to skip the update.
enum class ScalerSync {
  host,    // step() reads one number from the device: any optimizer, all rules, several ranks
  device,  // nothing is read: step() of cox::AdamW only, one rank, parameters on one device, rules
           // with hysteresis 1 and a finite max_scale x growth_factor
};

class LossScaler {
 public:
  // Throws cox::Error for rules out of range, or for rules that ScalerSync::device cannot follow.
  explicit LossScaler(ScalerRules rules = {}, ScalerSync sync = ScalerSync::host);
  // Makes a scaler whose ranks agree in step(): all skip if one has to. step() and is_finite() are
  // then collective, in the same order on all ranks (one all-reduce of 8 bytes). update() is
  // collective, too, for gradients that were unscaled and not stepped. The session must outlive the
  // scaler.
  explicit LossScaler(Session& session, ScalerRules rules = {});
  LossScaler(LossScaler&&) noexcept;
  LossScaler& operator=(LossScaler&&) noexcept;
  ~LossScaler();

  // Returns loss x scale, in fp32 or fp64, on the loss's device. Autograd records the product.
  // Throws cox::Error for a loss of another type than float, and with ScalerSync::device for a
  // second device.
  at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients by the scale, in place, and records whether all are finite. Call
  // unscale() at most once an optimizer between two calls of update(). An optimizer without any
  // gradient counts as finite. Local. Throws cox::Error on a second call, after step(), on fp16 or
  // sparse gradients, and with ScalerSync::device if no parameter has a gradient.
  void unscale(AdamW& optimizer);
  void unscale(torch::optim::Optimizer& optimizer);
  // Unscales for an optimizer of another kind: step that optimizer if is_finite(), then call
  // update(). All such parameters go into one call, because a second call before update() throws.
  void unscale(std::span<const at::Tensor> parameters);

  // Unscales if unscale() was not called, then steps the optimizer unless a gradient is not finite.
  // Returns whether the optimizer stepped (always true with ScalerSync::device, which reads
  // nothing). Throws cox::Error on a second call before update(), and as unscale() does.
  bool step(AdamW& optimizer);
  bool step(torch::optim::Optimizer& optimizer);
  // Returns whether the gradients given to unscale(parameters) are finite, on all ranks if the
  // scaler has a session. Reads the device. Throws cox::Error before unscale(parameters).
  bool is_finite();

  // Sets the scale for the next step, by all gradients that were unscaled since the last update().
  // Throws cox::Error if no unscale() or step() was called since.
  void update();

  // Returns the present scale and the scaler's counters. With ScalerSync::device, value() and
  // state() read the device.
  ScalerState value() const;
  const ScalerRules& rules() const { return rules_; }

  // Returns copies of "loss_scaler.scale" (float32), "loss_scaler.clean_steps" and
  // "loss_scaler.overflow_streak" (int64), one element each, on the CPU. Rules are configuration of
  // the job, not state.
  std::vector<NamedTensor> state() const;
  // Loads a list that state() returned. Load the same list on all ranks. Returns invalid_argument
  // for other names, shapes or types, or a scale out of [min_scale, max_scale]. Returns
  // failed_precondition between unscale() and update(). An error changes nothing.
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
