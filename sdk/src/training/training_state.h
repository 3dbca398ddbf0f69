// Everything that makes a training run go on as if nothing had happened: parameters, buffers,
// optimizer state and the place in the data. TrainingSaves captures it for saves on the disk,
// Rollbacks for snapshots in memory. A Trainer's random numbers need no state, because they are
// keyed by step and sample. Training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint.h"
#include "sdk/src/training/optimizer_port.h"

namespace torch::nn {
class Module;
}

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

// Returns the parameters of a model by name, and its tensors: parameters, then buffers. They are
// live ones.
std::vector<NamedTensor> named_parameters(const torch::nn::Module& model);
std::vector<NamedTensor> model_tensors(const torch::nn::Module& model);

// Returns what a save and a snapshot hold of these. Tensors may be live ones.
Checkpoint capture(const torch::nn::Module& model, const OptimizerPort& optimizer);
// Returns it with copies of the tensors.
Checkpoint copied(Checkpoint live);
// Puts that back in place: parameters keep their identity. Only tensors of the optimizer are ever
// taken.
Status restore(const Checkpoint& state, torch::nn::Module& model, OptimizerPort& optimizer,
               Handover handover);

// TrainedState is what a kind of loop gives to its saves.
class TrainedState {
 public:
  virtual ~TrainedState() = default;
  // Returns the tensors of a save, live ones or copies, but for parts that the program adds.
  virtual Checkpoint capture() const = 0;
  // Gives values to the optimizer's tensors of capture() that have none there, because ranks hold
  // them in parts. A rank gets those that `keeps` names; the others become undefined. Collective.
  virtual void complete(std::vector<NamedTensor>& /*optimizer*/,
                        const std::function<bool(std::size_t place)>& /*keeps*/) const {}
  // Puts what capture() gave back in place. Local.
  virtual Status restore(const Checkpoint& state, Handover handover) = 0;
  // Returns a function that puts the model and its optimizer back as they are now, from copies of
  // what this rank holds. Local; the function is collective where ranks divide them.
  virtual std::function<Status()> remember() {
    return [this, copies = copied(capture())] { return restore(copies, Handover::copied); };
  }
  // Returns bits of what a save must have alike on all ranks, beyond the weights.
  virtual std::uint64_t equal_bits() const { return 0; }
};

}  // namespace cox::detail
