#include "sdk/src/training/training_state.h"

#include <torch/torch.h>

#include <algorithm>

#include "coxswain/safetensors.h"

namespace cox::detail {
namespace {

std::vector<NamedTensor> copies(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> result;
  result.reserve(tensors.size());
  for (const NamedTensor& named : tensors) {
    result.push_back({named.name, named.tensor.detach().clone()});
  }
  return result;
}

}  // namespace

std::vector<NamedTensor> model_tensors(const torch::nn::Module& model) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : model.named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : model.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

Snapshot take_snapshot(RoundId round, const TrainingPosition& position,
                       const torch::nn::Module& model, const OptimizerPort& optimizer) {
  return {round, position, copies(model_tensors(model)), copies(optimizer.state()), {}, {}};
}

Status restore(const Snapshot& snapshot, torch::nn::Module& model, OptimizerPort& optimizer) {
  const std::vector<NamedTensor> targets = model_tensors(model);
  if (Status loaded = load_into(targets, snapshot.model); !loaded.ok()) return loaded;
  return optimizer.load_state(snapshot.optimizer);
}

void SnapshotShelf::put(Snapshot snapshot) {
  if (snapshots_.size() == kKept) snapshots_.erase(snapshots_.begin());
  snapshots_.push_back(std::move(snapshot));
}

const Snapshot* SnapshotShelf::newest_before(RoundId round) {
  const auto is_late = [&](const Snapshot& s) { return s.round >= round; };
  snapshots_.erase(std::remove_if(snapshots_.begin(), snapshots_.end(), is_late), snapshots_.end());
  return snapshots_.empty() ? nullptr : &snapshots_.back();
}

}  // namespace cox::detail
