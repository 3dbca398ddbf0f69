// Reads traces of operations: CSV, plain or gzip, one row for each operation, in the format of the
// published straggler traces (docs/what-if.md). The header line names the columns; unknown columns
// are ignored. Files may be hostile.
//
//   read_trace_text(path) -> text -> parse_trace() -> rows (TraceRow) -> diagnosis::arrange()
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/trace.h"

namespace cox::io {

inline constexpr std::size_t kMaxTraceFileBytes = std::size_t{256} << 20;  // size on the disk
inline constexpr std::size_t kMaxTraceTextBytes = std::size_t{1} << 30;

// Returns the text of a trace. Unpacks gzip by content, not by file name. Blocks on the disk.
// Errors: those of read_file() and gunzip().
Result<std::string> read_trace_text(const std::filesystem::path& path);

// Parses all rows. Errors: invalid_argument, naming line and column (a missing column; an unknown
// kind; a number that is malformed, not finite, negative or beyond its limit; a row with too few
// fields), resource_exhausted (more than kMaxTraceRows rows).
Result<std::vector<diagnosis::TraceRow>> parse_trace(std::string_view text);

}  // namespace cox::io
