#include "sdk/src/device/transfer.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace cox::detail {

at::Tensor staged_for(const at::Tensor& tensor, c10::Device device) {
  const bool stays =
      !tensor.defined() || device.is_cpu() || !tensor.is_cpu() || tensor.layout() != at::kStrided;
  if (stays) return tensor;
  // LibTorch copies a tensor with gaps or overlaps through plain memory, and waits.
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return dense.is_pinned() ? dense : dense.pin_memory();
}

at::Tensor sent_to(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return staged_for(tensor, device).to(device, /*non_blocking=*/true);
}

HostCopy::HostCopy(const at::Tensor& tensor) : came_(tensor.device().type()) {
  if (tensor.is_cpu()) {
    host_ = tensor;
    return;
  }
  host_ = at::empty(tensor.sizes(),
                    at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  came_.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

}  // namespace cox::detail
