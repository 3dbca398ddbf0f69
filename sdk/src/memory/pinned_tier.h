// PinnedTier is the tier of tensors on a device: they leave it for pinned memory of the host and
// come back, on a stream of their own. The host waits for nothing: a copy sets out behind what the
// current stream was given so far, and finish() lets the current stream wait, on the device, until
// the copy is over. So memory that is given back afterwards is not used again too early, and a
// tensor that came back is not read too early.
//
// Any thread may call any function, with the current stream that it computes on; only one thread at
// a time for one transfer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "sdk/src/memory/tier.h"

namespace cox::detail {

class PinnedTier final : public Tier {
 public:
  explicit PinnedTier(c10::Device device);

  // `offset` says nothing: each transfer has a buffer of its own, kept in Transfer::kept.
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

// Measures how fast tensors of `bytes` go to pinned memory and back, as measure_tier() does for a
// folder; waits for the device. Errors: unavailable with the device's own words.
Result<std::int64_t> measure_pinned(c10::Device device,
                                    std::int64_t bytes = std::int64_t{32} << 20);

}  // namespace cox::detail
