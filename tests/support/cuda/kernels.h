// Runs operators of the stand-in libtorch_cuda.so with the CPU's kernels, on CPU tensors over the
// shadow of the device's memory. One boxed function (kernels.cc) covers every operator with a CPU
// kernel. Operators that make, move or share memory, or that the real library composes differently,
// have their own kernels (memory_kernels.cc, fused_kernels.cc).
//
// Thread rule: any thread, like LibTorch's own kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace cox::standin {

// Launch is one kernel on the current stream of a device.
class Launch {
 public:
  // Waits for the kernel's turn on the stream. REQUIRES: `device` is a CUDA device and the current
  // one; `what` lives until the kernel ends.
  Launch(c10::Device device, const char* what);

  // Return a CPU tensor over the bytes of a device's tensor: reads() for reading, writes() for
  // reading and writing. Return any other tensor unchanged.
  at::Tensor reads(const at::Tensor& tensor);
  at::Tensor writes(const at::Tensor& tensor);

  // Returns a tensor on the device with the values of the kernel's result.
  at::Tensor result(const at::Tensor& made);

  // Makes the host wait for the kernel, because it needs the result. Counts the wait.
  void wait();

 private:
  at::Tensor take(const at::Tensor& tensor, bool writes);

  c10::Device device_;
  const char* what_;
  void* stream_;
};

}  // namespace cox::standin
