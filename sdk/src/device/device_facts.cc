#include "sdk/src/device/device_facts.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <array>
#include <cstddef>

#include "coordinator/core/text.h"

namespace cox::detail {
namespace {

// In every version of CUDA, the structure of properties begins with the name and is smaller.
struct Properties {
  std::array<char, 256> name{};
  std::array<std::byte, 8192> rest{};
};

// Calls a function of CUDA's runtime. Returns whether it exists and succeeded.
template <class... Arguments>
bool call(const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr && function(arguments...) == 0;
}

std::string name_of(c10::Device device) {
  alignas(std::max_align_t) Properties properties;
  const int number = device.index();
  if (!call("cudaGetDeviceProperties", static_cast<void*>(&properties), number)) return {};
  properties.name.back() = '\0';
  return properties.name.data();
}

std::string runtime_version() {
  int version = 0;
  if (!call("cudaRuntimeGetVersion", &version)) return {};
  return concat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

std::optional<DeviceFacts> facts_of(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  DeviceFacts facts;
  facts.name = name_of(device);
  facts.cuda = runtime_version();
  call("cudaGetDeviceCount", &facts.devices);
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  if (call("cudaMemGetInfo", &free_bytes, &all_bytes)) facts.memory_bytes = all_bytes;
  return facts;
}

CudnnFlags cudnn_flags() {
  const at::Context& context = at::globalContext();
  return {context.benchmarkCuDNN(), context.deterministicCuDNN(),
          context.allowTF32CuDNN(at::Float32Op::CONV)};
}

}  // namespace cox::detail
