// Reads the busy times of a pipeline's stages from a file of either form, plain or gzip:
//
//   {"microbatches": 8, "intervals": [[0, 0.0, 1.0], ...]}   stage, start and end in seconds;
//                                                            microbatches may be null or missing
//   a Chrome / Kineto trace (kernel_trace_file.h)            devices are stages, ordered by number,
//                                                            busy while computing
//
// Streams the file piece by piece. Blocks on the disk; any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/stage_interval.h"

namespace cox::io {

inline constexpr std::size_t kMaxStageIntervals = std::size_t{1} << 22;
inline constexpr std::size_t kMaxStages = kMaxDevices;
inline constexpr std::size_t kMaxMicrobatches = std::size_t{1} << 20;

struct PipelineFile {
  std::vector<diagnosis::StageInterval> intervals;
  std::optional<std::size_t> microbatches;
};

// Parses either form. Pure. Errors: data_loss (not JSON), invalid_argument (neither form; an
// impossible number; fewer than two stages; no busy time), resource_exhausted (beyond the limits
// above).
Result<PipelineFile> parse_pipeline(std::string_view json);

// Reads a file. Errors: those of InputFile, GzipPieces, parse_pipeline() and parse_kernel_trace().
Result<PipelineFile> read_pipeline(const std::filesystem::path& path);

}  // namespace cox::io
