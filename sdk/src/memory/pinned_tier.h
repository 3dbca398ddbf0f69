// PinnedTier is the tier for tensors on a device: copies to pinned host memory and back run on a
// stream of their own. The host never waits. A copy follows the current stream's work so far, and
// finish() makes the current stream wait, on the device, for the copy. So memory freed after
// finish() is not reused too early, and a returned tensor is not read too early.
//
// Any thread may call any function, with its own current stream; one thread at a time for each
// transfer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "sdk/src/memory/tier.h"

namespace cox::detail {

class PinnedTier final : public Tier {
 public:
  explicit PinnedTier(c10::Device device);

  // Ignores `offset`: each transfer has its own buffer, kept in Transfer::kept.
  void start(Transfer& transfer) override;
  Transfer::State finish(Transfer& transfer) override;
  void cancel(Transfer& transfer) override;

 private:
  struct Copy;
  at::Tensor on_device(const Transfer& transfer) const;
  c10::Stream current() const;
  void copy(Transfer& transfer);

  const c10::Device device_;
  const c10::Stream stream_;
};

// Measures the speed of tensors of `bytes` to pinned memory and back, as measure_tier() does for a
// folder; waits for the device. Errors: unavailable with the device's own message.
Result<std::int64_t> measure_pinned(c10::Device device,
                                    std::int64_t bytes = std::int64_t{32} << 20);

}  // namespace cox::detail
