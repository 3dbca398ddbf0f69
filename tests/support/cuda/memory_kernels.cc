// The kernels of the stand-in libtorch_cuda.so that make, move and share memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include "tests/support/cuda/kernels.h"
#include "tests/support/cuda/stand_in.h"

namespace cox::standin {
namespace {

using c10::cuda::CUDAStream;
using Sizes = c10::IntArrayRef;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// Finds the current device. LibTorch's own kernels, too, leave device guards to the caller.
c10::Device device_or_current(std::optional<c10::Device> device) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  if (device && device->has_index()) return *device;
  return {c10::DeviceType::CUDA, c10::cuda::current_device()};
}

c10::Allocator* allocator() {
  return c10::cuda::CUDACachingAllocator::get();
}

at::Tensor empty(Sizes size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::cuda::CUDAGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, allocator(), kCuda, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<c10::Device> device,
                         std::optional<bool>) {
  const c10::cuda::CUDAGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), kCuda,
                                           c10::dtype_or_default(type));
}

// ---- copies

void order_streams(const CUDAStream& first, const CUDAStream& then) {
  if (first == then) return;
  c10::Event event(c10::DeviceType::CUDA);
  event.record(first.unwrap());
  event.block(then.unwrap());
}

// Copies on the source's current stream. The other device's current stream waits before and after.
void copy_between_devices(const at::Tensor& to, const at::Tensor& from) {
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(from.device().index());
  const CUDAStream other = c10::cuda::getCurrentCUDAStream(to.device().index());
  order_streams(other, stream);
  {
    const c10::cuda::CUDAGuard guard(from.device());
    Launch launch(from.device(), "copy_");
    launch.writes(to).copy_(launch.reads(from));
  }
  order_streams(stream, other);
}

// REQUIRES: the tensors have one layout, and at least one of them is on a device.
void copy_bytes(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.nbytes() == 0) return;
  const at::Tensor& there = to.is_cuda() ? to : from;
  const at::Tensor& here = to.is_cuda() ? from : to;
  const c10::cuda::CUDAGuard guard(there.device());
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(there.device().index());
  const bool pinned = here.is_pinned();
  C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(),
                                 cudaMemcpyDefault, stream));
  if (!pinned) return;  // the runtime has waited and counted the wait
  if (non_blocking) {
    const auto& memory = here.storage().data_ptr();
    at::getHostAllocator(at::kCUDA)->record_event(here.mutable_data_ptr(), memory.get_context(),
                                                  stream.unwrap());
  } else {
    cox_standin_wait(stream, 0);
  }
}

// Returns whether both tensors are dense with their elements in one order.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

// Copies as the real library does: bytes move between tensors of one type and layout, which are
// made if needed.
void copy_across(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (lie_alike(to, from)) return copy_bytes(to, from, non_blocking);
  const auto type = to.is_cuda() ? to.dtype() : from.dtype();
  const at::Tensor packed_from = from.to(type).expand(to.sizes()).contiguous();
  const at::Tensor packed_to = to.is_contiguous() && to.dtype() == type
                                   ? to
                                   : at::empty(to.sizes(), to.options().dtype(type));
  copy_bytes(packed_to, packed_from, non_blocking && packed_to.is_same(to));
  if (!packed_to.is_same(to)) to.copy_(packed_to);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.is_same(from) || to.numel() == 0) return to;
  if (!to.is_cuda() || !from.is_cuda()) {
    copy_across(to, from, non_blocking);
  } else {
    copy_between_devices(to, from.expand(to.sizes()));
  }
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, from, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  Launch launch(tensor.device(), "item");
  const at::Scalar value = launch.reads(tensor).item();
  launch.wait();
  return value;
}

// ---- sharing

const at::Tensor& resize_(const at::Tensor& tensor, Sizes size,
                          std::optional<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const auto bytes = at::detail::computeStorageNbytesContiguous(size, tensor.element_size(),
                                                                tensor.storage_offset());
  const at::Storage storage = tensor.storage();
  if (bytes > storage.nbytes()) {
    const c10::cuda::CUDAGuard guard(tensor.device());
    at::DataPtr grown = allocator()->allocate(bytes);
    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cudaMemcpyAsync(grown.get(), storage.data(), storage.nbytes(),
                                   cudaMemcpyDeviceToDevice, stream));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, std::int64_t offset, Sizes size,
                        Sizes stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage) {
  const auto count = static_cast<std::int64_t>(storage.nbytes() / tensor.element_size());
  return set_storage(tensor, std::move(storage), 0, {count}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  return set_storage(tensor, other.storage(), other.storage_offset(), other.sizes(),
                     other.strides());
}

at::Tensor& set_nothing(at::Tensor& tensor) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  return set_storage(tensor,
                     at::Storage(c10::make_intrusive<c10::StorageImpl>(
                         c10::StorageImpl::use_byte_size_t(), 0, allocator(), true)),
                     0, {0}, {1});
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), CUDAStream(stream));
}

TORCH_LIBRARY_IMPL(aten, CUDA, kernels) {
  kernels.impl("empty.memory_format", TORCH_FN(empty));
  kernels.impl("empty_strided", TORCH_FN(empty_strided));
  kernels.impl("copy_", TORCH_FN(copy_));
  kernels.impl("_copy_from", TORCH_FN(copy_from));
  kernels.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  kernels.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  kernels.impl("view", TORCH_FN(at::native::view));
  kernels.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  kernels.impl("unfold", TORCH_FN(at::native::unfold));
  kernels.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  kernels.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  kernels.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  kernels.impl("resize_", TORCH_FN(resize_));
  kernels.impl("set_", TORCH_FN(set_nothing));
  kernels.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  kernels.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  kernels.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  kernels.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace
}  // namespace cox::standin
