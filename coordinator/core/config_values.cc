#include "coordinator/core/config_values.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace cox::config_values {
namespace {

// Reads all of `text` or nothing.
template <class Number>
bool read_whole(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && stopped == end && !text.empty();
}

Status expected(const std::string& what, std::string_view found) {
  return invalid_argument("expected " + what + ", found '" + std::string(found) + "'");
}

}  // namespace

Result<std::uint64_t> parse_integer(std::string_view text, IntegerRange range) {
  std::uint64_t value = 0;
  if (!read_whole(text, value) || value < range.min || value > range.max) {
    return expected(
        "a whole number from " + std::to_string(range.min) + " to " + std::to_string(range.max),
        text);
  }
  return value;
}

Result<double> parse_number(std::string_view text, NumberRange range) {
  double value = 0;
  if (!read_whole(text, value) || !(value >= range.min && value <= range.max)) {
    return expected("a number from " + format(range.min) + " to " + format(range.max), text);
  }
  return value;
}

Result<std::size_t> parse_name(std::string_view text, std::span<const std::string_view> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return i;
  }
  return expected("one of " + join(names), text);
}

Result<bool> parse_switch(std::string_view text) {
  for (const std::string_view yes : {"on", "true", "yes", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"off", "false", "no", "0"}) {
    if (text == no) return false;
  }
  return expected("on or off", text);
}

Result<std::optional<PolicyMode>> parse_auto_mode(std::string_view text) {
  const Result<std::size_t> index = parse_name(text, kAutoModeNames);
  if (!index.ok()) return index.status();
  std::optional<PolicyMode> mode;
  if (*index > 0) mode = static_cast<PolicyMode>(*index - 1);
  return mode;
}

std::string format_auto_mode(const std::optional<PolicyMode>& mode) {
  return std::string(kAutoModeNames[mode ? 1 + static_cast<std::size_t>(*mode) : 0]);
}

Result<std::vector<std::uint32_t>> parse_list(std::string_view text, IntegerRange range) {
  std::vector<std::uint32_t> values;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const Result<std::uint64_t> value = parse_integer(trim(text.substr(0, comma)), range);
    if (!value.ok()) return value.status();
    values.push_back(static_cast<std::uint32_t>(*value));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return expected("a number after the last comma", text);
  }
  return values;
}

Result<std::vector<std::string_view>> parse_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    parts.push_back(trim(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return invalid_argument("expected something after the last comma");
  }
  return parts;
}

std::string format(double value) {
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, written.ptr);
}

std::string format(float value) {
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, written.ptr);
}

std::string format(const std::vector<std::uint32_t>& values) {
  std::string out;
  for (const std::uint32_t value : values) {
    if (!out.empty()) out += ",";
    out += std::to_string(value);
  }
  return out;
}

std::string join(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    if (!out.empty()) out += "|";
    out += name;
  }
  return out;
}

std::string quote(std::string_view value) {
  const bool survives =
      value == trim(value) && value.find_first_of("#\"\\\n\r") == std::string_view::npos;
  if (survives) return std::string(value);
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n' || c == '\r') {
      out += c == '\n' ? "\\n" : "\\r";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Result<std::string> unquote(std::string_view written) {
  if (written.empty() || written.front() != '"') return std::string(written);
  std::string out;
  for (std::size_t i = 1; i < written.size(); ++i) {
    if (written[i] == '"') {
      if (i + 1 == written.size()) return out;
      return expected("nothing after the closing quote", written.substr(i + 1));
    }
    if (written[i] == '\\' && i + 1 < written.size()) {
      const char escaped = written[++i];
      out += escaped == 'n' ? '\n' : escaped == 'r' ? '\r' : escaped;
    } else {
      out += written[i];
    }
  }
  return expected("a closing quote", written);
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace cox::config_values
