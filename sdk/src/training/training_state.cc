#include "sdk/src/training/training_state.h"

#include <torch/torch.h>

#include "coordinator/core/split_mix.h"
#include "coxswain/safetensors.h"

namespace cox::detail {

std::uint64_t mix(const RandomKey& key) {
  return split_mix(split_mix(split_mix(key.seed) ^ key.step) ^ key.first_sample);
}

void seed_default_generators(const RandomKey& key) {
  torch::manual_seed(mix(key));
}

std::vector<NamedTensor> named_parameters(const torch::nn::Module& model) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : model.named_parameters()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

std::vector<NamedTensor> model_tensors(const torch::nn::Module& model) {
  std::vector<NamedTensor> tensors = named_parameters(model);
  for (const auto& item : model.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

Checkpoint capture(const torch::nn::Module& model, const OptimizerPort& optimizer) {
  Checkpoint state;
  state.model = model_tensors(model);
  for (const auto& buffer : model.named_buffers()) state.buffers.insert(buffer.key());
  state.optimizer = optimizer.state();
  return state;
}

Checkpoint copied(Checkpoint live) {
  for (const SaveKind& kind : kSaveKinds) {
    for (NamedTensor& named : live.*kind.tensors) named.tensor = named.tensor.detach().clone();
  }
  return live;
}

Status restore(const Checkpoint& state, torch::nn::Module& model, OptimizerPort& optimizer,
               Handover handover) {
  const std::vector<NamedTensor> targets = model_tensors(model);
  if (Status loaded = load_into(targets, state.model); !loaded.ok()) return loaded;
  return optimizer.load_state(state.optimizer, handover);
}

}  // namespace cox::detail
