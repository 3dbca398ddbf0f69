// DeviceFacts describes a rank's device, for the start-up summary and for run.json. Calls CUDA's
// runtime by name, as in choice.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace cox::detail {

struct DeviceFacts {
  std::string name{};              // "NVIDIA H100 80GB HBM3"; empty if unknown
  std::uint64_t memory_bytes = 0;  // total; 0 = unknown
  std::int32_t devices = 0;        // usable by the process
  std::string cuda{};              // the runtime's version, "13.0"
};

// Returns nothing for the CPU. REQUIRES: `device` is the current one. Training thread only.
std::optional<DeviceFacts> facts_of(c10::Device device);

// CudnnFlags is the program's current choice of cuDNN's kernels.
struct CudnnFlags {
  bool benchmark = false;
  bool deterministic = false;
  bool allows_tf32 = false;  // in convolutions
};
CudnnFlags cudnn_flags();

}  // namespace cox::detail
