#include "sdk/src/blocks/saved_bytes.h"

#include <torch/nn/module.h>

#include <sstream>

#include "coxswain/error.h"
#include "sdk/src/blocks/storage.h"

namespace cox::detail {
namespace {

bool is_parameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

bool is_parameter_or_view(const at::Tensor& tensor) {
  return is_parameter(tensor) || (tensor.is_view() && is_parameter(tensor._base()));
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

class SavedBytesHooks final : public torch::autograd::SavedVariableHooks {
 public:
  SavedBytesHooks(std::shared_ptr<SavedBytesFrame> frame,
                  std::unique_ptr<torch::autograd::SavedVariableHooks> deciding)
      : frame_(std::move(frame)), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    frame_->count(tensor);
    if (deciding_) return deciding_->call_pack_hook(tensor);
    version_ = version_of(tensor);
    kept_ =
        is_parameter(tensor) ? tensor : tensor.detach();  // with its history it would be a cycle
  }

  at::Tensor call_unpack_hook() override {
    if (deciding_) return deciding_->call_unpack_hook();
    if (version_of(kept_) != version_) throw_changed();
    return kept_;
  }

 private:
  [[noreturn]] void throw_changed() const {
    std::ostringstream text;
    text << "block " << frame_->block() << ": a tensor of sizes " << kept_.sizes()
         << " that its backward pass needs was changed in place; expected version " << version_
         << ", found " << version_of(kept_)
         << "; use an operation that is not in place, or clone the tensor first";
    throw Error(failed_precondition(text.str()));
  }

  std::shared_ptr<SavedBytesFrame> frame_;
  std::unique_ptr<torch::autograd::SavedVariableHooks> deciding_;
  at::Tensor kept_;
  std::int64_t version_ = 0;
};

}  // namespace

SavedBytesFrame::SavedBytesFrame(std::string block, const torch::nn::Module& module,
                                 std::shared_ptr<SavedBytesFrame> outer)
    : block_(std::move(block)), outer_(std::move(outer)), below_(innermost_frame()) {
  if (below_ != nullptr) below_ = below_->deciding();
  for (const at::Tensor& tensor : module.parameters()) first_sight(tensor);
  for (const at::Tensor& tensor : module.buffers()) first_sight(tensor);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SavedBytesFrame::make_hooks() {
  auto deciding = below_ != nullptr ? below_->make_hooks() : nullptr;
  return std::make_unique<SavedBytesHooks>(shared_from_this(), std::move(deciding));
}

void SavedBytesFrame::count(const at::Tensor& tensor) {
  if (outer_) outer_->count(tensor);
  if (is_parameter_or_view(tensor)) return;
  if (first_sight(tensor)) bytes_ += storage_bytes(tensor);
}

// A weak reference keeps the address of a storage that is freed meanwhile from being used again.
bool SavedBytesFrame::first_sight(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  auto storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  return seen_.try_emplace(storage_of(tensor), std::move(storage)).second;
}

std::uint64_t SavedBytesFrame::close() {
  seen_.clear();
  outer_.reset();
  return bytes_;
}

}  // namespace cox::detail
