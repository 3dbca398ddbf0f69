// Moves tensors between host and device without waiting, through pinned memory, in the order of the
// current stream. LibTorch's allocator of pinned memory reuses a buffer only after the buffer's
// copy is over, so a caller may drop both ends at once. Copies nothing on the CPU. Any thread; the
// copy goes onto the calling thread's current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace cox::detail {

// Returns the tensor in pinned memory without gaps or overlaps, ready for `device`. Returns the
// tensor itself for the CPU, and undefined for an undefined one.
at::Tensor staged_for(const at::Tensor& tensor, c10::Device device);

// Returns the tensor on `device`, or the tensor itself if it is there already. The host never
// waits.
at::Tensor sent_to(const at::Tensor& tensor, c10::Device device);

// HostCopy is a tensor on its way to the host, through pinned memory.
class HostCopy {
 public:
  HostCopy() : came_(c10::DeviceType::CPU) {}
  // Starts the copy from the tensor's device, in the order of the current stream. A tensor on the
  // CPU has arrived at once.
  explicit HostCopy(const at::Tensor& tensor);

  bool has_come() const { return came_.query(); }
  // Blocks until the copy has arrived.
  void wait() const { came_.synchronize(); }
  // REQUIRES: has_come().
  const at::Tensor& tensor() const { return host_; }

 private:
  at::Tensor host_;
  c10::Event came_;
};

}  // namespace cox::detail
