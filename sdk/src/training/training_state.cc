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

StepBuffers::StepBuffers(const std::vector<at::Tensor>& buffers,
                         const std::function<bool(const at::Tensor&)>& is_kept) {
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined()) continue;
    all_.push_back(buffer);
    if (is_kept(buffer)) kept_.push_back({buffer, {}});
  }
}

std::uint64_t StepBuffers::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : all_) sum += static_cast<std::uint64_t>(buffer._version());
  return sum;
}

void StepBuffers::begin_step() {
  const std::uint64_t now = versions();
  if (seen_ == now) return;
  for (Kept& kept : kept_) kept.before = kept.buffer.detach().clone();
  seen_ = now;
}

void StepBuffers::put_back() {
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::equal(kept.buffer, kept.before)) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::put_back_nonfinite() {
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::isfinite(kept.buffer).all().item<bool>()) kept.buffer.copy_(kept.before);
  }
}

}  // namespace cox::detail
