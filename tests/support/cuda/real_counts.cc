// Counts the host's waits and copies on the real CUDA runtime, as the stand-in runtime does by
// itself (stand_in.h). scripts/gpu-check preloads this library before libcudart.so.13, so that
// tests of device waits in a step work on a GPU, too. Each function counts, then calls the next
// function of its name. A copy with unpinned memory and LibTorch's following wait for its stream
// count as one wait. Any thread.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>

#include "tests/support/cuda/stand_in.h"

#define COX_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<std::uint64_t> stream_waits{0}, event_waits{0}, device_waits{0}, blocking_copies{0},
    copies_to_host{0}, copies_to_device{0};

thread_local cudaStream_t copied_on = nullptr;
thread_local bool has_just_copied = false;  // the last call was a counted copy, on `copied_on`

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// The driver stages copies with unpinned memory, and the host waits for them.
bool is_pageable(const void* address) {
  cudaPointerAttributes attributes{};
  static const auto ask =
      next<cudaError_t(cudaPointerAttributes*, const void*)>("cudaPointerGetAttributes");
  return ask(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered;
}

void count_copy(void* to, const void* from, cudaMemcpyKind kind, cudaStream_t stream) {
  const bool to_host = kind == cudaMemcpyDeviceToHost;
  const bool to_device = kind == cudaMemcpyHostToDevice;
  copies_to_host += to_host;
  copies_to_device += to_device;
  if ((to_host && is_pageable(to)) || (to_device && is_pageable(from))) {
    ++blocking_copies;
    has_just_copied = true;
    copied_on = stream;
  }
}

}  // namespace

COX_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  static const auto real = next<cudaError_t(cudaStream_t)>("cudaStreamSynchronize");
  const bool is_counted = has_just_copied && copied_on == stream;
  has_just_copied = false;
  if (!is_counted) ++stream_waits;
  return real(stream);
}

COX_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  static const auto real = next<cudaError_t(cudaEvent_t)>("cudaEventSynchronize");
  ++event_waits;
  return real(event);
}

COX_EXPORT cudaError_t cudaDeviceSynchronize() {
  static const auto real = next<cudaError_t()>("cudaDeviceSynchronize");
  ++device_waits;
  return real();
}

COX_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  static const auto real =
      next<cudaError_t(void*, const void*, size_t, cudaMemcpyKind)>("cudaMemcpy");
  ++blocking_copies;
  copies_to_host += kind == cudaMemcpyDeviceToHost;
  copies_to_device += kind == cudaMemcpyHostToDevice;
  return real(to, from, bytes, kind);
}

COX_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
  static const auto real =
      next<cudaError_t(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t)>(
          "cudaMemcpyAsync");
  count_copy(to, from, kind, stream);
  return real(to, from, bytes, kind, stream);
}

COX_EXPORT void cox_standin_read_counters(cox_standin_counters* counters) {
  *counters = {};
  counters->stream_synchronisations = stream_waits;
  counters->event_synchronisations = event_waits;
  counters->device_synchronisations = device_waits;
  counters->blocking_copies = blocking_copies;
  counters->copies_to_host = copies_to_host;
  counters->copies_to_device = copies_to_device;
}

COX_EXPORT uint64_t cox_standin_synchronisations(void) {
  return stream_waits + event_waits + device_waits + blocking_copies;
}
