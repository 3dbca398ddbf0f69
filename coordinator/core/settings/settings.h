// How a section of the configuration lists its settings. Each section (run.h, guard.h, memory.h,
// ...) has a struct of plain members and a function that returns one row for each of them: key,
// unit, range, help, scope, and where the value is stored. A new setting is one member and one row.
//
//   std::vector<Setting<GuardConfig>> guard_settings() {
//     return {mode(&GuardConfig::mode, {"mode", "", "acts on trouble with the loss"}),
//             integer(&GuardConfig::hold_rounds, {"hold_rounds", "rounds", "knobs rest"}, {0,
//             99})};
//   }
//
// core/config.cc puts the sections together; everything else about configuration (reading, writing,
// documentation, checks, fingerprints) goes through the rows. Reading and writing are exact: what
// get() writes, set() reads to the same value, whatever the locale. Pure functions, plain values;
// errors are invalid_argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/policy_mode.h"
#include "coordinator/core/status.h"

namespace cox {

// Says what must be the same on all ranks: the value, nothing, or whether there is one (what needs
// the value is done by all ranks together or by none).
enum class Scope { job, rank, set_alike };

struct SettingName {
  std::string key;  // within its section: "hold_rounds"
  std::string unit;
  std::string help;
  Scope scope = Scope::job;
};

template <class Section>
struct Setting {
  SettingName name;
  std::string kind;   // "integer", "number", "text", "switch", "mode", "list", ...
  std::string range;  // "1 .. 1000000", "off|observe|on"
  std::function<Status(Section&, std::string_view)> set;  // after an error the section is unchanged
  std::function<std::string(const Section&)> get;
  std::function<PolicyMode(const Section&)> mode;  // of a policy's mode; empty for other settings
};

// Whether the whole of a name fits; '*' stands for any text.
bool fits_pattern(std::string_view pattern, std::string_view name);

// Returns the last of the rules (each with a `pattern`) that fits the name; null where none does.
template <class Rule>
const Rule* last_fitting(const std::vector<Rule>& rules, std::string_view name) {
  const Rule* last = nullptr;
  for (const Rule& rule : rules) {
    if (fits_pattern(rule.pattern, name)) last = &rule;
  }
  return last;
}

namespace settings {

struct IntegerRange {
  std::uint64_t min = 0;
  std::uint64_t max = 0;
};
struct NumberRange {
  double min = 0;
  double max = 0;
};

inline constexpr std::string_view kModeNames[] = {"off", "observe", "on"};
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

std::string_view trim(std::string_view text);
std::string join(std::span<const std::string_view> names);  // "off|observe|on"

Result<std::uint64_t> parse_integer(std::string_view text, IntegerRange range);
Result<double> parse_number(std::string_view text, NumberRange range);
// Returns the index of `text` in `names`.
Result<std::size_t> parse_name(std::string_view text, std::span<const std::string_view> names);
// Takes on|off, true|false, yes|no, 1|0.
Result<bool> parse_switch(std::string_view text);
// Takes "6GiB", "1.5MiB", "4096": whole bytes up to 1024TiB. Units: B, KiB, MiB, GiB, TiB.
Result<std::int64_t> parse_bytes(std::string_view text);

std::string format(double value);  // the shortest text that reads back as the same number
std::string format(float value);
std::string format(std::uint64_t value);
std::string format_bytes(std::int64_t bytes);  // in the largest unit that divides it

// Calls `take` with each of the parts between commas, trimmed, up to the first error. An empty text
// has no parts, and none may be missing behind the last comma.
Status for_each_part(std::string_view text, const std::function<Status(std::string_view)>& take);

// A part "LEFT=RIGHT", both sides trimmed. `form` is how the whole is called in the error.
struct Pair {
  std::string_view left, right;
};
Result<Pair> parse_pair(std::string_view part, char separator, std::string_view form);

// "LEFT=RIGHT,LEFT=RIGHT": what `text_of` gives for each of the values.
template <class Values, class TextOf>
std::string format_list(const Values& values, TextOf text_of) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ",") + text_of(value);
  return out;
}

// A text value in a file: as it is, or in double quotes where it would not survive (blanks around
// it, '#', quotes, line breaks). unquote() undoes both; invalid_argument for a quote left open.
std::string quote(std::string_view value);
Result<std::string> unquote(std::string_view written);

// The makers of rows, one for each kind of value.

// A value with a text form of its own: `parse` reads it, `format_value` writes it back.
template <class Section, class Value, class Parse, class Format>
Setting<Section> parsed(Value Section::*field, SettingName name, std::string kind,
                        std::string range, Parse parse, Format format_value) {
  Setting<Section> made{std::move(name), std::move(kind), std::move(range), {}, {}, {}};
  made.set = [parse, field](Section& section, std::string_view text) {
    auto value = parse(text);
    if (value.ok()) section.*field = static_cast<Value>(*std::move(value));
    return value.status();
  };
  made.get = [format_value, field](const Section& section) {
    return std::string(format_value(section.*field));
  };
  return made;
}

template <class Section, class Value>
Setting<Section> integer(Value Section::*field, SettingName name, IntegerRange range) {
  return parsed(
      field, std::move(name), "integer",
      std::to_string(range.min) + " .. " + std::to_string(range.max),
      [range](std::string_view text) { return parse_integer(text, range); },
      [](Value value) { return std::to_string(value); });
}

template <class Section, class Value>
Setting<Section> number(Value Section::*field, SettingName name, NumberRange range) {
  return parsed(
      field, std::move(name), "number", format(range.min) + " .. " + format(range.max),
      [range](std::string_view text) { return parse_number(text, range); },
      [](Value value) { return format(value); });
}

// An enum whose values count through `names`, which must outlive the row.
template <class Section, class Value>
Setting<Section> choice(Value Section::*field, SettingName name,
                        std::span<const std::string_view> names, std::string kind = "choice") {
  return parsed(
      field, std::move(name), std::move(kind), join(names),
      [names](std::string_view text) { return parse_name(text, names); },
      [names](Value value) { return names[static_cast<std::size_t>(value)]; });
}

template <class Section>
Setting<Section> flag(bool Section::*field, SettingName name) {
  return parsed(field, std::move(name), "switch", "off|on", parse_switch,
                [](bool value) { return value ? "on" : "off"; });
}

template <class Section>
Setting<Section> text(std::string Section::*field, SettingName name) {
  return parsed(
      field, std::move(name), "text", "any text",
      [](std::string_view value) { return Result<std::string>(std::string(value)); },
      [](const std::string& value) { return value; });
}

template <class Section>
Setting<Section> bytes(std::int64_t Section::*field, SettingName name) {
  return parsed(field, std::move(name), "bytes", "0 .. 1024TiB", parse_bytes, format_bytes);
}

// The mode of the policy that is called as the section.
template <class Section>
Setting<Section> mode(PolicyMode Section::*field, SettingName name) {
  Setting<Section> made = choice(field, std::move(name), kModeNames, "mode");
  made.mode = [field](const Section& section) { return section.*field; };
  return made;
}

// A mode that may also be left to the rest of its section: an empty optional, "auto", is on where
// `wants` says so.
Result<std::optional<PolicyMode>> parse_auto_mode(std::string_view text);
std::string format_auto_mode(const std::optional<PolicyMode>& mode);

template <class Section, class Wants>
Setting<Section> auto_mode(std::optional<PolicyMode> Section::*field, SettingName name,
                           Wants wants) {
  Setting<Section> made = parsed(field, std::move(name), "mode", "auto|" + join(kModeNames),
                                 parse_auto_mode, format_auto_mode);
  made.mode = [field, wants](const Section& section) {
    return (section.*field).value_or(wants(section) ? PolicyMode::on : PolicyMode::off);
  };
  return made;
}

// The row of a part as a row of the whole that has the part as a member.
template <class Whole, class Part>
Setting<Whole> within(Part Whole::*member, Setting<Part> row) {
  Setting<Whole> made{std::move(row.name), std::move(row.kind), std::move(row.range), {}, {}, {}};
  made.set = [member, set = std::move(row.set)](Whole& whole, std::string_view value) {
    return set(whole.*member, value);
  };
  made.get = [member, get = std::move(row.get)](const Whole& whole) { return get(whole.*member); };
  if (row.mode) {
    made.mode = [member, mode = std::move(row.mode)](const Whole& whole) {
      return mode(whole.*member);
    };
  }
  return made;
}

}  // namespace settings
}  // namespace cox
