// DeviceFacts is what the device of a rank is, for the start-up summary and for run.json. CUDA's
// runtime is asked by name, as in choice.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace cox::detail {

struct DeviceFacts {
  std::string name{};              // "NVIDIA H100 80GB HBM3"; empty where the runtime does not say
  std::uint64_t memory_bytes = 0;  // in all; 0 = not known
  std::int32_t devices = 0;        // that this process may use
  std::string cuda{};              // the runtime's version, "13.0"
};

// Returns nothing for the CPU. REQUIRES: `device` is the current one. Training thread only.
std::optional<DeviceFacts> facts_of(c10::Device device);

// CudnnFlags is how the program lets cuDNN choose kernels, now.
struct CudnnFlags {
  bool benchmark = false;
  bool deterministic = false;
  bool allows_tf32 = false;  // in convolutions
};
CudnnFlags cudnn_flags();

}  // namespace cox::detail
