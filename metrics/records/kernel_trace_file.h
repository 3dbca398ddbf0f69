// Reads the kernels out of a Chrome / Kineto trace (`.json`, packed by gzip or not), for the time
// in which communication is hidden by nothing. The file is read piece by piece: what is kept are 16
// bytes a kernel, and those of kernels that overlap are merged. Blocks on the disk; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "coordinator/core/status.h"
#include "metrics/records/kernel_trace.h"

namespace cox::io {

// As text. Ten million events take some four gigabytes.
inline constexpr std::uint64_t kMaxKernelTraceBytes = std::uint64_t{16} << 30;
// That overlap no others, of all devices and both kinds together.
inline constexpr std::size_t kMaxKernels = std::size_t{1} << 25;
inline constexpr std::size_t kMaxDevices = 1024;

// Pure. Errors: data_loss (no JSON), invalid_argument (no trace), resource_exhausted (more than
// kMaxKernels or kMaxDevices).
Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json);

// Errors: those of InputFile, GzipPieces and parse_kernel_trace(); resource_exhausted for more than
// kMaxKernelTraceBytes.
Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path);

}  // namespace cox::io
