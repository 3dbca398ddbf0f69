#include "sdk/src/blocks/bits_comparison.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "sdk/src/device/bits_hash.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// Returns whether the tensor's bytes can be read as they lie.
bool is_comparable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.element_size() <= 8 &&
         tensor.is_non_overlapping_and_dense();
}

// Hashes bytes as they lie: compared tensors have the same strides. Needs little memory, because
// the step has a budget.
at::Tensor bits_on_device(const at::Tensor& tensor) {
  constexpr std::int64_t kElementsAtOnce = 1L << 16;
  const at::Tensor flat = tensor.detach().as_strided({tensor.numel()}, {1});
  return bits_hash_on(tensor.device(), {{flat}}, kElementsAtOnce);
}

// Runs a check of tensors on a device. A failure (full memory) costs the check, never the step.
template <class Look>
void look_only(const Look& look) noexcept {
  try {
    look();
  } catch (const std::exception&) {
  }
}

}  // namespace

// Hashes after the operator, because an operator may save a result before writing it.
class BitsComparison::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  Hooks(std::shared_ptr<BitsComparison> comparison, BlockId region,
        std::unique_ptr<SavedVariableHooks> deciding)
      : comparison_(std::move(comparison)), region_(region), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    deciding_->call_pack_hook(tensor);
    if (!is_comparable(tensor) || is_parameter(tensor)) return;
    bits_ = std::make_shared<Bits>(tensor.detach());
    comparison_->dropped_.push_back(bits_);
  }

  at::Tensor call_unpack_hook() override {
    at::Tensor found = deciding_->call_unpack_hook();
    if (bits_ != nullptr && is_comparable(found)) comparison_->compare_bits(region_, *bits_, found);
    return found;
  }

 private:
  const std::shared_ptr<BitsComparison> comparison_;
  const BlockId region_;
  const std::unique_ptr<SavedVariableHooks> deciding_;
  std::shared_ptr<Bits> bits_;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> BitsComparison::make_hooks(
    std::shared_ptr<BitsComparison> comparison, BlockId region,
    std::unique_ptr<torch::autograd::SavedVariableHooks> deciding) {
  return std::make_unique<Hooks>(std::move(comparison), region, std::move(deciding));
}

void BitsComparison::hash_dropped() {
  const StreamPause unseen;
  for (const std::shared_ptr<Bits>& bits : dropped_) {
    if (bits->tensor.is_cpu()) {
      bits->hash = bits_hash(bits->tensor);
    } else {
      look_only([&] { bits->hash_on_device = bits_on_device(bits->tensor); });
    }
    bits->tensor.reset();
  }
  dropped_.clear();
}

void BitsComparison::compare_bits(BlockId region, const Bits& bits, const at::Tensor& found) {
  if (found.is_cpu() && bits.hash && bits_hash(found) != *bits.hash) {
    const std::lock_guard lock(mutex_);
    note_unequal(region);
  }
  if (found.is_cpu() || !bits.hash_on_device.defined()) return;
  const StreamPause unseen;
  look_only([&] {
    const at::Tensor differs = bits_on_device(found) != bits.hash_on_device;
    const std::lock_guard lock(mutex_);
    comparisons_.push_back({region, differs});
  });
}

void BitsComparison::note_unequal(BlockId region) {
  if (std::ranges::find(unequal_, region) == unequal_.end()) unequal_.push_back(region);
}

// Waits for the device once.
void BitsComparison::read_comparisons() {
  const std::vector<DeviceComparison> comparisons = std::exchange(comparisons_, {});
  if (comparisons.empty()) return;
  const StreamPause unseen;
  look_only([&] {
    std::vector<at::Tensor> differ;
    for (const DeviceComparison& it : comparisons) differ.push_back(it.differs);
    const at::Tensor read = at::stack(differ).cpu();
    for (std::size_t c = 0; c < comparisons.size(); ++c) {
      if (read.const_data_ptr<bool>()[c]) note_unequal(comparisons[c].region);
    }
  });
}

std::vector<BlockId> BitsComparison::take_unequal() {
  const std::lock_guard lock(mutex_);
  read_comparisons();
  return std::exchange(unequal_, {});
}

}  // namespace cox::detail
