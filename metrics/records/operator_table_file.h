// Reads and writes a rank's table of operators as a file for `cox ops`. docs/operators.md describes
// the format. Pure text in and out; the text may be hostile. Errors: invalid_argument, naming row
// and field; data_loss if the text is no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/status.h"

namespace cox::io {

inline constexpr std::size_t kMaxOperatorTableBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxOperatorRows = std::size_t{1} << 16;
inline constexpr std::string_view kOperatorTableName = "operators.json";  // in a rank's folder
inline constexpr std::string_view kOperatorTableFormat = "coxswain-operators";
inline constexpr std::int64_t kOperatorTableVersion = 1;

// Returns the table as JSON with one row a line. The text ends with a line feed. Writes at most
// kMaxOperatorRows rows, the ones with the most time.
std::string to_json(const OperatorTable& table);

// Parses a table. Refuses an unknown version.
Result<OperatorTable> read_operator_table(std::string_view text);

}  // namespace cox::io
