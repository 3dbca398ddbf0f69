// Reads the kernels out of a Chrome / Kineto trace (`.json`, packed by gzip or not), for the time
// in which communication is hidden by nothing. The file is read piece by piece: what is kept are 16
// bytes a kernel. Blocks on the disk; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/diagnosis/kernel_trace.h"

namespace cox::io {

inline constexpr std::size_t kMaxKernelTraceBytes = std::size_t{2} << 30;
inline constexpr std::size_t kMaxKernels = std::size_t{1} << 24;

// Pure. Errors: data_loss (no JSON), invalid_argument (no trace), resource_exhausted (more than
// kMaxKernels).
Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json);

// Errors: those of read_file(), gunzip() and parse_kernel_trace().
Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path);

}  // namespace cox::io
