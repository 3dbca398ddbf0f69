// The functions of libcudart.so.13 used by libc10_cuda and libtorch_cpu, on the machine of
// machine.h. Functions without a caller in tests refuse. CUDA's own header declares the prototypes,
// so the compiler checks them.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/support/cuda/machine.h"

#undef cudaGetDeviceProperties

namespace {

using cox::standin::Event;
using cox::standin::Machine;
using cox::standin::Stream;
using Lock = Machine::Lock;

constexpr int kVersion = 13000;
constexpr int kMultiprocessors = 4;
constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

Machine& machine() {
  return Machine::get();
}

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t refuse(const char* function) {
  std::fprintf(stderr, "stand-in CUDA runtime: %s is not supported\n", function);
  return fail(cudaErrorNotSupported);
}

// Functions of the driver.
constexpr int kDriverSuccess = 0, kDriverNotSupported = 801;

int driver_device(int* device, int ordinal) {
  *device = ordinal;
  return kDriverSuccess;
}
int driver_attribute(int* value, int /*attribute*/, int /*device*/) {
  *value = 0;  // no virtual memory and no sharing
  return kDriverSuccess;
}
int driver_not_supported() {
  return kDriverNotSupported;
}

void* driver_function(std::string_view name) {
  if (name == "cuDeviceGet") return reinterpret_cast<void*>(&driver_device);
  if (name == "cuDeviceGetAttribute") return reinterpret_cast<void*>(&driver_attribute);
  return reinterpret_cast<void*>(&driver_not_supported);
}

bool is_device(int device) {
  return device >= 0 && device < machine().script().devices;
}
Stream& of(cudaStream_t stream) {
  return *machine().stream(stream, current_device);
}
Event& of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

// Returns whether the driver must stage copies: host memory that CUDA did not allocate.
bool is_pageable(const void* address) {
  return machine().device_of(address) < 0 && !machine().is_pinned(address);
}

void count_copy(const void* to, const void* from) {
  if (machine().device_of(to) >= 0 && machine().device_of(from) < 0)
    ++machine().counters.copies_to_device;
  if (machine().device_of(from) >= 0 && machine().device_of(to) < 0)
    ++machine().counters.copies_to_host;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, Stream& stream, Lock& lock) {
  if (!machine().is_allocated(to, bytes) || !machine().is_allocated(from, bytes))
    return fail(cudaErrorInvalidValue);
  machine().submit(stream);
  machine().note(from, bytes, false, stream, "a copy");
  machine().note(to, bytes, true, stream, "a copy");
  count_copy(to, from);
  const bool staged = bytes > 0 && (is_pageable(to) || is_pageable(from));
  if (staged) {
    ++machine().counters.blocking_copies;
    machine().drain(stream, lock);
  }
  machine().enqueue(stream, [to = machine().shadow(to), from = machine().shadow(from), bytes] {
    std::memmove(to, from, bytes);
    return true;
  });
  if (is_pageable(to)) machine().host_joins(stream.clock);
  return cudaSuccess;
}

void synchronise(Stream& stream, Lock& lock) {
  machine().drain(stream, lock);
  machine().host_joins(stream.clock);
}

}  // namespace

extern "C" {

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  if (!machine().script().driver) return fail(cudaErrorInsufficientDriver);
  *count = machine().script().devices;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  if (!is_device(0)) return fail(cudaErrorNoDevice);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine().script().driver ? kVersion : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "stand-in for a GPU");
  properties->major = machine().script().capability / 10;
  properties->minor = machine().script().capability % 10;
  properties->totalGlobalMem = machine().script().capacity_bytes;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = kWarp;
  properties->maxThreadsPerBlock = kMostThreads;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

// Processes see different devices, unless CUDA_STANDIN_SHARED makes all of them see the same.
cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  const bool is_shared = std::getenv("CUDA_STANDIN_SHARED") != nullptr;
  const unsigned domain = is_shared ? 0 : static_cast<unsigned>(getpid()) & 0xffffu;
  std::snprintf(address, static_cast<std::size_t>(length), "%04x:%02x:00.0", domain, device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = machine().script().capability / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = machine().script().capability % 10;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMostThreads;
      break;
    case cudaDevAttrWarpSize:
      *value = kWarp;
      break;
    default:
      return refuse("cudaDeviceGetAttribute of this attribute");
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return fail(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return is_device(peer) ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize() {
  Lock lock;
  ++machine().counters.device_synchronisations;
  if (is_device(current_device)) machine().host_joins_device(current_device, lock);
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "another error";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return cudaGetErrorName(error);
  }
}

// ---- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (!is_device(current_device)) return fail(cudaErrorNoDevice);
  Lock lock;
  const bool blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = reinterpret_cast<cudaStream_t>(machine().new_stream(current_device, blocking));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}  // the stream's work continues

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Lock lock;
  Stream& stream = of(handle);
  const bool known = machine().host_knows(stream.actor, stream.clock.of(stream.actor));
  if (!stream.queue.empty() || (!known && stream.unready_queries-- > 0))
    return fail(cudaErrorNotReady);
  machine().host_joins(stream.clock);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock;
  ++machine().counters.stream_synchronisations;
  synchronise(of(handle), lock);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock;
  machine().wait_for(of(stream), of(event));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* made = new Event;
  made->timing = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock;
  delete &of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock;
  machine().record(of(event), of(stream));
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Lock lock;
  Event& event = of(handle);
  if (event.last == nullptr) return cudaSuccess;
  const bool known = machine().host_knows(event.last->actor, event.last->tick);
  if (!machine().complete(event) || (!known && event.unready_queries-- > 0))
    return fail(cudaErrorNotReady);
  machine().host_joins(event.last->clock);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Lock lock;
  Event& event = of(handle);
  ++machine().counters.event_synchronisations;
  machine().drain(event, lock);
  if (event.last != nullptr) machine().host_joins(event.last->clock);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Lock lock;
  const Event &from = of(start), &to = of(end);
  if (!from.timing || !to.timing || from.last == nullptr || to.last == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  if (!machine().complete(from) || !machine().complete(to)) return fail(cudaErrorNotReady);
  *milliseconds = static_cast<float>(to.last->at_ms - from.last->at_ms);
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (!is_device(current_device)) return fail(cudaErrorNoDevice);
  Lock lock;
  *address = bytes > 0 ? machine().device_allocate(current_device, bytes) : nullptr;
  return bytes > 0 && *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  Lock lock;
  return machine().device_free(address, lock) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (!is_device(current_device)) return fail(cudaErrorNoDevice);
  Lock lock;
  *total = machine().script().capacity_bytes;
  *free = *total - machine().used_bytes(current_device);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  Lock lock;
  *address = machine().pinned_allocate(bytes);
  return *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return cudaHostAlloc(address, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* address) {
  if (address == nullptr) return cudaSuccess;
  Lock lock;
  return machine().pinned_free(address, lock) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const int device = machine().device_of(address);
  attributes->type = device >= 0                    ? cudaMemoryTypeDevice
                     : machine().is_pinned(address) ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  attributes->device = device >= 0 ? device : current_device;
  attributes->devicePointer = is_pageable(address) ? nullptr : const_cast<void*>(address);
  attributes->hostPointer = device >= 0 ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Lock lock;
  return copy(to, from, bytes, of(stream), lock);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  Lock lock;
  const std::uint64_t before = machine().counters.blocking_copies;
  const cudaError_t error = copy(to, from, bytes, of(cudaStream_t{}), lock);
  if (error != cudaSuccess) return error;
  machine().counters.blocking_copies = before + 1;
  synchronise(of(cudaStream_t{}), lock);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  Lock lock;
  if (!machine().is_allocated(to, bytes)) return fail(cudaErrorInvalidValue);
  Stream& stream = of(handle);
  machine().submit(stream);
  machine().note(to, bytes, true, stream, "a memset");
  machine().enqueue(stream, [to = machine().shadow(to), value, bytes] {
    std::memset(to, value, bytes);
    return true;
  });
  return cudaSuccess;
}

// ---- refused

cudaError_t cudaMallocAsync(void**, std::size_t, cudaStream_t) {
  return refuse(__func__);
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) {
  return refuse(__func__);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return refuse(__func__);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return refuse(__func__);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return refuse(__func__);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return refuse(__func__);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, std::size_t) {
  return refuse(__func__);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return refuse(__func__);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return refuse(__func__);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return refuse(__func__);
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         std::size_t*) {
  return refuse(__func__);
}
// LibTorch's allocator looks up the driver's functions before its first block, and calls few of
// them.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
