// How the stand-in libtorch_cuda.so runs an operator: the CPU's kernel, on CPU tensors over the
// shadow of the device's memory. The operators that the CPU has kernels for are covered by one
// boxed function (kernels.cc); where memory is made, moved or shared, or where the real library
// composes an operator in another way, there is a kernel of its own (memory_kernels.cc,
// fused_kernels.cc).
//
// Thread rule: any thread, like LibTorch's own kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace cox::standin {

// One kernel on the current stream of a device.
class Launch {
 public:
  // Waits for its turn on the stream. REQUIRES: `device` is a CUDA device and the current one;
  // `what` lives until the kernel is over.
  Launch(c10::Device device, const char* what);

  // A CPU tensor over the bytes of a device's tensor, which the kernel reads, or reads and writes;
  // any other tensor as it is.
  at::Tensor reads(const at::Tensor& tensor);
  at::Tensor writes(const at::Tensor& tensor);

  // A tensor on the device with the values of what the kernel made.
  at::Tensor result(const at::Tensor& made);

  // The host waits for the kernel, whose result it needs. Counted.
  void wait();

 private:
  at::Tensor take(const at::Tensor& tensor, bool writes);

  c10::Device device_;
  const char* what_;
  void* stream_;
};

}  // namespace cox::standin
