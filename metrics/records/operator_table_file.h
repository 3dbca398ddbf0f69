// A rank's table of operators as a file, for `cox ops`; the format is on docs/operators.md. Pure
// text in and out; the text may be hostile. Errors are invalid_argument and name the row and field;
// data_loss where the text is no JSON.
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

// Returns the table as JSON with one row a line. The text ends with a line feed. Of more rows than
// kMaxOperatorRows those that took the most time are written.
std::string to_json(const OperatorTable& table);

// Refuses a version that it does not know.
Result<OperatorTable> read_operator_table(std::string_view text);

}  // namespace cox::io
