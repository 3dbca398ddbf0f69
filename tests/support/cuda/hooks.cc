// LibTorch's queries of libtorch_cuda beside kernels: devices, generators, pinned memory.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>

#include "tests/support/cuda/generator.h"

// Exported by libc10_cuda without a declaration in the wheel's headers. libtorch_cuda reports here
// which devices have a context.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

namespace cox::standin {
namespace {

using c10::cuda::CUDAStream;

// Reuses pinned memory as LibTorch does: after the events of the streams that used a block.
class PinnedBlocks : public at::CachingHostAllocatorImpl<CUDAStream, c10::Event> {
  void allocate_host_memory(std::size_t bytes, void** address) override {
    C10_CUDA_CHECK(cudaHostAlloc(address, bytes, cudaHostAllocDefault));
  }
  void free_block(at::HostBlock<CUDAStream>* block) override {
    C10_CUDA_CHECK(cudaFreeHost(block->ptr_));
  }
  void record_stream(std::optional<std::vector<c10::Event>>& events, CUDAStream stream) override {
    events->emplace_back(c10::DeviceType::CUDA);
    events->back().record(stream.unwrap());
  }
  bool query_event(c10::Event& event) override { return event.query(); }
  CUDAStream get_current_stream() const override { return c10::cuda::getCurrentCUDAStream(); }
  bool stream_is_capturing(CUDAStream) const override { return false; }
};

void free_pinned(void* block);
using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedBlocks, free_pinned>;

PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;  // outlives the last tensor
  return *allocator;
}

void free_pinned(void* block) {
  pinned_allocator().free(block);
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  }
  void init() const override { c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count()); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasCUDA() const override { return c10::cuda::device_count() > 0; }
  bool hasCUDART() const override { return true; }
  std::string showConfig() const override { return "  - CUDA: a stand-in\n"; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  c10::DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { c10::cuda::set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return c10::cuda::ExchangeDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return c10::cuda::MaybeExchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = c10::cuda::ExchangeDevice(device);
    c10::cuda::device_synchronize();
    c10::cuda::ExchangeDevice(before);
  }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return c10::cuda::CUDACachingAllocator::get();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::Generator(
        c10::make_intrusive<DeviceGenerator>(device < 0 ? c10::cuda::current_device() : device));
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override {
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, address) == cudaSuccess &&
           attributes.type == cudaMemoryTypeHost;
  }
  at::Device getDeviceFromPtr(void* address) const override {
    cudaPointerAttributes attributes;
    C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
    return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(attributes.device)};
  }
  long versionCUDART() const override { return CUDART_VERSION; }
};

const bool registered = [] {
  at::setHostAllocator(c10::DeviceType::CUDA, &pinned_allocator());
  return true;
}();

}  // namespace
}  // namespace cox::standin

namespace at {
using CUDAHooks = cox::standin::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
