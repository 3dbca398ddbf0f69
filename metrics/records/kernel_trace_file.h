// Reads the kernels of a Chrome / Kineto trace (`.json`, plain or gzip) to compute exposed
// communication. Streams the file piece by piece. Keeps 16 bytes a kernel; overlapping kernels are
// merged. Blocks on the disk; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "coordinator/core/status.h"
#include "metrics/records/kernel_trace.h"

namespace cox::io {

// Limits the unpacked text. Ten million events take about four gigabytes.
inline constexpr std::uint64_t kMaxKernelTraceBytes = std::uint64_t{16} << 30;
// Limits the merged intervals of all devices and both kinds together.
inline constexpr std::size_t kMaxKernels = std::size_t{1} << 25;
inline constexpr std::size_t kMaxDevices = 1024;

// Parses a trace. Pure. Errors: data_loss (no JSON), invalid_argument (no trace),
// resource_exhausted (more than kMaxKernels or kMaxDevices).
Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json);

// Reads a trace file. Errors: those of InputFile, GzipPieces and parse_kernel_trace();
// resource_exhausted for more than kMaxKernelTraceBytes.
Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path);

}  // namespace cox::io
