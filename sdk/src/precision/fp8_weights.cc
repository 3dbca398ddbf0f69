#include "sdk/src/precision/fp8_weights.h"

#include <algorithm>

namespace cox::detail {

Fp8Weights::Key Fp8Weights::key_of(const at::Tensor& weight) {
  return {weight.storage().unsafeGetStorageImpl(),
          weight.storage().data(),
          weight.storage_offset(),
          c10::DimVector(weight.sizes().begin(), weight.sizes().end()),
          c10::DimVector(weight.strides().begin(), weight.strides().end()),
          weight.is_inference() ? 0 : weight._version()};
}

Fp8Operand Fp8Weights::get(const at::Tensor& weight, std::uint32_t margin) {
  const Key key = key_of(weight);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) return found->operand;
  // Other versions of the same memory, and memory that is gone, will not be asked for again.
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.storage.expired() ||
           (entry.key.storage == key.storage && entry.key.version != key.version);
  });
  if (entries_.size() == kMost) entries_.pop_front();
  const at::Tensor scale = current_scale(weight, FloatFormat::e4m3, granularity_, margin);
  entries_.push_back({key, weight.storage().getWeakStorageImpl(),
                      quantize_tensor(weight, FloatFormat::e4m3, scale).operand});
  ++quantized_;
  return entries_.back().operand;
}

}  // namespace cox::detail
