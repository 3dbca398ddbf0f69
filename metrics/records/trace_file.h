// Traces of operations as files: CSV, plain or packed by gzip, one row an operation, in the format
// of the published straggler traces (docs/what-if.md). Columns are found by their names in the
// header line; others are ignored. Files may be hostile.
//
//   read_trace_text(path) -> text -> parse_trace() -> TraceRows -> diagnosis::arrange()
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/trace.h"

namespace cox::io {

inline constexpr std::size_t kMaxTraceFileBytes = std::size_t{256} << 20;  // as it lies on the disk
inline constexpr std::size_t kMaxTraceTextBytes = std::size_t{1} << 30;

// Returns the text of a trace, unpacked where it is packed, whatever its name. Blocks on the disk.
// Errors: those of read_file() and gunzip().
Result<std::string> read_trace_text(const std::filesystem::path& path);

// Reads all rows. Errors: invalid_argument that names line and column (a missing column, a kind
// that is not known, a number that is none, is not finite, is negative or beyond its limit, a row
// with too few fields), resource_exhausted (more than kMaxTraceRows rows).
Result<std::vector<diagnosis::TraceRow>> parse_trace(std::string_view text);

}  // namespace cox::io
