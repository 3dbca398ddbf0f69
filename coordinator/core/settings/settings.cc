#include "coordinator/core/settings/settings.h"

#include <array>
#include <cmath>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"

namespace cox {

bool fits_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last one seen ...
  std::size_t tried = 0;                      // ... and where its text ends for now
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

namespace settings {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Unit, 5> kUnits = {{{"TiB", std::int64_t{1} << 40},
                                         {"GiB", std::int64_t{1} << 30},
                                         {"MiB", std::int64_t{1} << 20},
                                         {"KiB", std::int64_t{1} << 10},
                                         {"B", 1}}};

Status expected(std::string_view what, std::string_view found) {
  return invalid_argument("expected ", what, ", found '", shown(found), "'");
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string join(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    if (!out.empty()) out += "|";
    out += name;
  }
  return out;
}

Result<std::uint64_t> parse_integer(std::string_view text, IntegerRange range) {
  const auto value = parsed_number<std::uint64_t>(text);
  if (!value || *value < range.min || *value > range.max)
    return expected(concat("a whole number from ", range.min, " to ", range.max), text);
  return *value;
}

Result<double> parse_number(std::string_view text, NumberRange range) {
  const auto value = parsed_number<double>(text);
  if (!value || !(*value >= range.min && *value <= range.max))
    return expected(concat("a number from ", format(range.min), " to ", format(range.max)), text);
  return *value;
}

Result<std::size_t> parse_name(std::string_view text, std::span<const std::string_view> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return i;
  }
  return expected(concat("one of ", join(names)), text);
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

Result<std::int64_t> parse_bytes(std::string_view text) {
  Unit unit = kUnits.back();
  std::string_view number = text;
  for (const Unit& known : kUnits) {
    if (!text.ends_with(known.name)) continue;
    unit = known;
    number = text.substr(0, text.size() - known.name.size());
    break;
  }
  const Result<double> value = parse_number(number, {0, static_cast<double>(kMaxBytes)});
  double bytes = value.ok() ? *value * static_cast<double>(unit.bytes) : -1;
  if (unit.bytes > 1) bytes = std::round(bytes);  // 4.8MiB
  if (!(bytes >= 0 && bytes <= static_cast<double>(kMaxBytes)) || bytes != std::floor(bytes))
    return expected("bytes up to 1024TiB, such as 6GiB, 512MiB or 65536", text);
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes == 0 || bytes % unit.bytes != 0) continue;
    return concat(bytes / unit.bytes, unit.bytes == 1 ? "" : unit.name);
  }
  return "0";
}

Status for_each_part(std::string_view text, const std::function<Status(std::string_view)>& take) {
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    if (Status status = take(trim(text.substr(0, comma))); !status.ok()) return status;
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return invalid_argument("expected something after the last comma");
  }
  return ok_status();
}

Result<Pair> parse_pair(std::string_view part, char separator, std::string_view form) {
  const std::size_t at = part.rfind(separator);
  if (at == std::string_view::npos) return expected(form, part);
  return Pair{trim(part.substr(0, at)), trim(part.substr(at + 1))};
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
  return concat(out, "\"");
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

}  // namespace settings
}  // namespace cox
