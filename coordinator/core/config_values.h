// How the settings of a Config are read from text and written back. Both ways are exact: what
// format() writes, parse() reads to the same value. Independent of the locale. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"

namespace cox::config_values {

struct IntegerRange {
  std::uint64_t min = 0;
  std::uint64_t max = 0;
};
struct NumberRange {
  double min = 0;
  double max = 0;
};

inline constexpr std::string_view kModeNames[] = {"off", "observe", "on"};
inline constexpr std::string_view kAutoModeNames[] = {"auto", "off", "observe", "on"};
inline constexpr std::string_view kPathNames[] = {"auto", "mailbox", "mpi"};
inline constexpr std::string_view kLogNames[] = {"debug", "info", "warning", "error", "quiet"};
inline constexpr std::string_view kSwitchNames[] = {"off", "on"};

Result<std::uint64_t> parse_integer(std::string_view text, IntegerRange range);
Result<double> parse_number(std::string_view text, NumberRange range);
// The index of `text` in `names`. A switch also takes true|false|yes|no|1|0.
Result<std::size_t> parse_name(std::string_view text, std::span<const std::string_view> names);
Result<bool> parse_switch(std::string_view text);
// A mode, or "auto" as an empty one.
Result<std::optional<PolicyMode>> parse_auto_mode(std::string_view text);
std::string format_auto_mode(const std::optional<PolicyMode>& mode);
// Whole numbers separated by commas; an empty text is an empty list.
Result<std::vector<std::uint32_t>> parse_list(std::string_view text, IntegerRange range);

// The parts between commas, trimmed; an empty text has none, and none may follow the last comma.
Result<std::vector<std::string_view>> parse_parts(std::string_view text);

std::string format(double value);  // the shortest text that reads back as the same number
std::string format(float value);
std::string format(const std::vector<std::uint32_t>& values);
std::string join(std::span<const std::string_view> names);  // "off|observe|on"

// A text value in a file: as it is, or in double quotes where it would not survive (blanks around
// it, '#', quotes, line breaks). unquote() undoes both; invalid_argument for a quote left open.
std::string quote(std::string_view value);
Result<std::string> unquote(std::string_view written);

std::string_view trim(std::string_view text);

}  // namespace cox::config_values
