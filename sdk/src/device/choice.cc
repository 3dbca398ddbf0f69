#include "sdk/src/device/choice.h"

#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/nn/module.h>

#include <array>
#include <filesystem>

#include "coordinator/core/text.h"

namespace cox::detail {
namespace {

constexpr bool kLooksForCuda = COX_WITH_CUDA != 0;  // as configured for the build
constexpr const char* kCudaLibrary = "libtorch_cuda.so";

std::string said(const char* error) {
  return error != nullptr ? std::string(error) : std::string("no reason was given");
}

// libtorch_cpu itself needs CUDA's runtime, so the runtime is in every process.
CudaFacts ask_runtime() {
  using Count = int (*)(int*);
  using Name = const char* (*)(int);
  const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "cudaGetDeviceCount"));
  const auto name = reinterpret_cast<Name>(dlsym(RTLD_DEFAULT, "cudaGetErrorString"));
  if (count == nullptr || name == nullptr) return {0, "CUDA's runtime is not loaded", {}};
  int devices = 0;
  const int error = count(&devices);
  if (error != 0) return {0, said(name(error)), {}};
  if (devices <= 0) return {0, "CUDA has no device", {}};
  return {devices, {}, {}};
}

// Returns the error; empty if the library is loaded.
std::string load_library() {
  if (dlopen(kCudaLibrary, RTLD_NOW | RTLD_NOLOAD) != nullptr) return {};
  Dl_info info{};
  const auto* inside = reinterpret_cast<const void*>(&at::globalContext);
  if (dladdr(inside, &info) == 0) return "LibTorch's folder is not known";
  const auto file = std::filesystem::path(info.dli_fname).parent_path() / kCudaLibrary;
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) return said(dlerror());
  return {};
}

}  // namespace

CudaFacts find_cuda() {
  if (!kLooksForCuda) return {0, "this build has no CUDA support (COX_WITH_CUDA)", {}};
  CudaFacts facts = ask_runtime();
  if (facts.devices == 0) return facts;
  facts.why_unusable = load_library();
  if (facts.why_unusable.empty() && !at::hasCUDA()) {
    facts.why_unusable =
        "LibTorch checked for CUDA before Session::start (torch::manual_seed checks too) and keeps "
        "the result that there is none; start the session first";
  }
  return facts;
}

Result<c10::Device> choose_device(DeviceSetting setting, const CudaFacts& facts,
                                  std::int32_t rank_on_node) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (setting == DeviceSetting::cpu) return cpu;
  const std::string why = facts.devices == 0 ? facts.why_none : facts.why_unusable;
  if (why.empty()) {
    return c10::Device(c10::DeviceType::CUDA,
                       static_cast<c10::DeviceIndex>(rank_on_node % facts.devices));
  }
  if (setting == DeviceSetting::automatic) return cpu;
  return failed_precondition(
      concat("run.device=cuda: expected a CUDA device that LibTorch can use, found none: ", why,
             "; use run.device=auto to train on the CPU where there is none"));
}

std::string device_address(c10::Device device) {
  using Address = int (*)(char*, int, int);
  const auto ask = reinterpret_cast<Address>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  std::array<char, 32> address{};
  if (device.is_cpu() || ask == nullptr) return {};
  if (ask(address.data(), static_cast<int>(address.size()), device.index()) != 0) return {};
  return address.data();
}

c10::Device device_of(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.device().is_cpu()) return parameter.device();
  }
  return at::kCPU;
}

void wait_for_current_stream(c10::Device device) {
  if (device.is_cpu()) return;
  c10::Event here(device.type());
  here.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  here.synchronize();
}

void make_current(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace cox::detail
