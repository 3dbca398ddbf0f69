// The state with which a training run continues exactly: parameters, buffers, optimizer state and
// the position in the data. TrainingSaves captures the state for saves on the disk, Rollbacks for
// snapshots in memory. A Trainer's random numbers need no state, because they are keyed by step and
// sample. Training thread only.
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

// RandomKey identifies the random numbers of a forward pass: the job's seed, the step and the first
// sample of the share. The numbers do not depend on earlier draws, so a resumed or repeated step
// draws the same numbers.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
};

// Mixes the three numbers by the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(const RandomKey& key);

// Seeds torch's default generators.
void seed_default_generators(const RandomKey& key);

// Returns the parameters of a model by name, and its tensors: parameters, then buffers. The tensors
// are live ones.
std::vector<NamedTensor> named_parameters(const torch::nn::Module& model);
std::vector<NamedTensor> model_tensors(const torch::nn::Module& model);

// Returns the contents of a save or snapshot. Tensors may be live ones.
Checkpoint capture(const torch::nn::Module& model, const OptimizerPort& optimizer);
// Returns the checkpoint with copies of its tensors.
Checkpoint copied(Checkpoint live);
// Restores the result of capture(). Parameters keep their identity. With Handover::taken, only
// tensors of the optimizer are taken over without a copy.
Status restore(const Checkpoint& state, torch::nn::Module& model, OptimizerPort& optimizer,
               Handover handover);

// TrainedState is the interface of a loop to its saves.
class TrainedState {
 public:
  virtual ~TrainedState() = default;
  // Returns the tensors of a save, live ones or copies, without parts that the program adds.
  virtual Checkpoint capture() const = 0;
  // Fills in tensors of the optimizer that capture() left without values, because ranks hold them
  // in parts. A rank gets the tensors that `keeps` names; the others become undefined. Collective.
  virtual void complete(std::vector<NamedTensor>& /*optimizer*/,
                        const std::function<bool(std::size_t place)>& /*keeps*/) const {}
  // Returns whether the tensor holds only this rank's elements of a larger one.
  virtual bool is_shard(const at::Tensor& /*tensor*/) const { return false; }
  // Restores the result of capture(). Local.
  virtual Status restore(const Checkpoint& state, Handover handover) = 0;
  // Copies what this rank holds of the model and its optimizer, and returns a function that puts
  // the copies back. Local; the function is collective where ranks divide the state.
  virtual std::function<Status()> remember() {
    return [this, copies = copied(capture())] { return restore(copies, Handover::copied); };
  }
  // Returns a hash of state that a save must have alike on all ranks, beyond the weights.
  virtual std::uint64_t equal_bits() const { return 0; }
};

}  // namespace cox::detail
