// Moving tensors between host and device without waiting: through pinned memory, in the order of
// the current stream. LibTorch's allocator of pinned memory does not give a buffer out again before
// the copy that uses it is over, so a caller may drop both ends at once. On the CPU nothing is
// copied. Any thread; the copy goes onto that thread's current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cox::detail {

// Returns the tensor in pinned memory without gaps or overlaps, ready to be sent to `device`;
// itself where that is the CPU. Undefined tensors stay so.
at::Tensor staged_for(const at::Tensor& tensor, c10::Device device);

// Returns the tensor on `device`; itself where it is there already. The host goes on at once.
at::Tensor sent_to(const at::Tensor& tensor, c10::Device device);

// HostCopy is a tensor on its way to the host, through pinned memory. Nothing waits for it.
class HostCopy {
 public:
  HostCopy() : came_(c10::DeviceType::CPU) {}
  // Lets the tensor set out from its device, in the order of the current stream. One on the CPU is
  // there at once.
  explicit HostCopy(const at::Tensor& tensor);

  bool has_come() const { return came_.query(); }
  // Blocks until it has come.
  void wait() const { came_.synchronize(); }
  // REQUIRES: has_come().
  const at::Tensor& tensor() const { return host_; }

 private:
  at::Tensor host_;
  c10::Event came_;
};

}  // namespace cox::detail
