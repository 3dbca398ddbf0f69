#include "sdk/src/memory/recompute_recorder.h"

#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include <sstream>

namespace cox::detail {
namespace {

// The graph of the second run is thrown away, unless the function itself differentiates in it.
class RecordHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit RecordHooks(Recorder& recorder) : recorder_(recorder) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    saved_ = tensor.is_leaf() && tensor.requires_grad() ? tensor : tensor.detach();
    recorder_.record(tensor);
  }
  at::Tensor call_unpack_hook() override { return saved_; }

 private:
  Recorder& recorder_;  // used while the function runs
  at::Tensor saved_;
};

}  // namespace

SavedShape shape_of(const at::Tensor& tensor) {
  return {c10::DimVector(tensor.sizes().begin(), tensor.sizes().end()), tensor.scalar_type(),
          tensor.device()};
}

std::string to_string(const SavedShape& shape) {
  std::ostringstream text;
  text << c10::toString(shape.type) << at::IntArrayRef(shape.sizes);
  return text.str();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recorder::make_hooks() {
  return std::make_unique<RecordHooks>(*this);
}

void Recorder::record(const at::Tensor& tensor) {
  if (found_.size() >= wanted_) return;
  at::Tensor saved = tensor.detach();
  if (edited_.has_memory_of(tensor)) saved = saved.clone();
  const std::int64_t version = version_of(saved);
  found_.push_back({std::move(saved), version});
  if (found_.size() == wanted_ && may_stop_) throw StopRecompute{};
}

}  // namespace cox::detail
