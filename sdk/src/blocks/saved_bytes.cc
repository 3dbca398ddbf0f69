#include "sdk/src/blocks/saved_bytes.h"

#include <torch/nn/module.h>

#include "coxswain/error.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

class SavedBytesHooks final : public torch::autograd::SavedVariableHooks {
 public:
  SavedBytesHooks(std::shared_ptr<SavedBytesFrame> frame,
                  std::unique_ptr<torch::autograd::SavedVariableHooks> deciding)
      : frame_(std::move(frame)), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    frame_->count(tensor);
    if (deciding_) return deciding_->call_pack_hook(tensor);
    version_ = version_of(tensor);
    // With its history it would be a cycle.
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
  }

  at::Tensor call_unpack_hook() override {
    if (deciding_) return deciding_->call_unpack_hook();
    if (version_of(kept_) != version_) throw_changed();
    return kept_;
  }

 private:
  [[noreturn]] void throw_changed() const {
    throw Error(failed_precondition("block " + frame_->block() + ": " +
                                    changed_in_place(kept_.sizes(), version_, version_of(kept_))));
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
  for (const at::Tensor& tensor : module.parameters()) add_storage(tensor);
  for (const at::Tensor& tensor : module.buffers()) add_storage(tensor);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SavedBytesFrame::make_hooks() {
  auto deciding = below_ != nullptr ? below_->make_hooks() : nullptr;
  return std::make_unique<SavedBytesHooks>(shared_from_this(), std::move(deciding));
}

void SavedBytesFrame::count(const at::Tensor& tensor) {
  if (outer_) outer_->count(tensor);
  if (is_parameter_or_view(tensor)) return;
  if (add_storage(tensor)) bytes_ += storage_bytes(tensor);
}

// A weak reference keeps the address of a storage that is freed meanwhile from being used again.
bool SavedBytesFrame::add_storage(const at::Tensor& tensor) {
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
