// The rows of the configuration. Each section (run.h, guard.h, memory.h, ...) has a struct of plain
// members and a function that returns one row for each of them: key, unit, range, help, scope, and
// where the value is stored. A new setting is one member and one row. core/config.cc collects the
// sections; reading, writing, documentation, checks and fingerprints use the rows. Reading and
// writing are exact in any locale: set() reads the text of get() back to the same value. Pure
// functions, plain values; errors are invalid_argument.
//
//   std::vector<Setting<GuardConfig>> guard_settings() {
//     return {
//         mode(&GuardConfig::mode, {"mode", "", "acts on trouble with the loss"}),
//         integer(&GuardConfig::hold_rounds, {"hold_rounds", "rounds", "knobs rest"}, {0, 99}),
//     };
//   }
#pragma once

#include <algorithm>
#include <charconv>
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

#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// Scope says which part must be equal on all ranks: the value, nothing, or whether a value is set
// (all ranks or none do the work that needs the value).
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
  std::function<Status(Section&, std::string_view)> set{};  // changes nothing on an error
  std::function<std::string(const Section&)> get{};
  std::function<PolicyMode(const Section&)> mode{};  // of a policy's mode; empty for other settings
  bool is_path = false;                              // of a file or folder
};

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
// Parses on|off, true|false, yes|no, 1|0.
Result<bool> parse_switch(std::string_view text);
// Parses "6GiB", "1.5MiB", "4096": bytes up to 1024TiB, rounded to whole ones if there is a unit.
// Units: B, KiB, MiB, GiB, TiB.
Result<std::int64_t> parse_bytes(std::string_view text);

// Returns the shortest text that reads back as the same number.
template <class Number>
std::string format(Number value) {
  char buffer[32];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, written.ptr);
}
std::string format_bytes(std::int64_t bytes);  // in the largest unit that divides them

// Calls `take` with each trimmed part between commas, up to the first error. An empty text has no
// parts; a comma at the end is an error.
Status for_each_part(std::string_view text, const std::function<Status(std::string_view)>& take);

// Pair is a part "LEFT=RIGHT" with both sides trimmed. `form` describes such a part in errors.
struct Pair {
  std::string_view left, right;
};
Result<Pair> parse_pair(std::string_view part, char separator, std::string_view form);

// Parses values between commas with `parse_part`, and writes values with `text_of`.
template <class Value, class ParsePart>
Result<std::vector<Value>> parse_list(std::string_view text, ParsePart parse_part) {
  std::vector<Value> values;
  const Status status = for_each_part(text, [&](std::string_view part) {
    Result<Value> value = parse_part(part);
    if (value.ok()) values.push_back(*std::move(value));
    return value.status();
  });
  if (!status.ok()) return status;
  return values;
}
template <class Values, class TextOf>
std::string format_list(const Values& values, TextOf text_of) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ",") + text_of(value);
  return out;
}

// quote() returns a text value as written in a file: plain, or in double quotes if the value has
// blanks at an end, '#', quotes or line breaks. unquote() reverses both, and returns
// invalid_argument for an open quote.
std::string quote(std::string_view value);
Result<std::string> unquote(std::string_view written);

// The makers of rows, one for each kind of value.

// Makes the row of a value with a text form of its own: `parse` reads the text, `format_value`
// writes it.
template <class Section, class Value, class Parse, class Format>
Setting<Section> parsed(Value Section::*field, SettingName name, std::string kind,
                        std::string range, Parse parse, Format format_value) {
  Setting<Section> made{std::move(name), std::move(kind), std::move(range)};
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
      field, std::move(name), "integer", concat(range.min, " .. ", range.max),
      [range](std::string_view text) { return parse_integer(text, range); },
      [](Value value) { return std::to_string(value); });
}

template <class Section, class Value>
Setting<Section> number(Value Section::*field, SettingName name, NumberRange range) {
  return parsed(
      field, std::move(name), "number", concat(format(range.min), " .. ", format(range.max)),
      [range](std::string_view text) { return parse_number(text, range); },
      [](Value value) { return format(value); });
}

// Makes the row of an enum whose values are indices into `names`, which must outlive the row.
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

// Makes the row of the path of a file or folder; empty = none.
template <class Section>
Setting<Section> path(std::string Section::*field, SettingName name) {
  Setting<Section> made = text(field, std::move(name));
  made.is_path = true;
  return made;
}

template <class Section>
Setting<Section> bytes(std::int64_t Section::*field, SettingName name) {
  return parsed(field, std::move(name), "bytes", "0 .. 1024TiB", parse_bytes, format_bytes);
}

// Makes the row of the mode of the policy that has the section's name.
template <class Section>
Setting<Section> mode(PolicyMode Section::*field, SettingName name) {
  Setting<Section> made = choice(field, std::move(name), kModeNames, "mode");
  made.mode = [field](const Section& section) { return section.*field; };
  return made;
}

// Makes the row of an optional enum: "auto" if empty, else an index into `names`.
template <class Section, class Value>
Setting<Section> auto_choice(std::optional<Value> Section::*field, SettingName name,
                             std::span<const std::string_view> names, std::string kind = "choice") {
  std::vector<std::string_view> all = {"auto"};
  all.insert(all.end(), names.begin(), names.end());
  const auto parse = [all](std::string_view text) -> Result<std::optional<Value>> {
    const auto index = parse_name(text, all);
    if (!index.ok()) return index.status();
    return *index == 0 ? std::nullopt : std::optional(static_cast<Value>(*index - 1));
  };
  return parsed(field, std::move(name), std::move(kind), join(all), parse,
                [all](const std::optional<Value>& value) {
                  return all[value ? 1 + static_cast<std::size_t>(*value) : 0];
                });
}

// Makes the row of a mode that may be unset. An unset mode is on if `wants` returns true for the
// section.
template <class Section, class Wants>
Setting<Section> auto_mode(std::optional<PolicyMode> Section::*field, SettingName name,
                           Wants wants) {
  Setting<Section> made = auto_choice(field, std::move(name), kModeNames, "mode");
  made.mode = [field, wants](const Section& section) {
    return (section.*field).value_or(wants(section) ? PolicyMode::on : PolicyMode::off);
  };
  return made;
}

// Makes the row of values by rank: in any order, each rank once, written in ascending ranks. `form`
// describes a part in errors, such as "RANK=VALUE"; its fifth character separates both sides.
template <class Section, class Value, class Parse, class Format>
Setting<Section> by_rank(std::map<std::int32_t, Value> Section::*field, SettingName name,
                         std::string kind, std::string_view form, std::string range, Parse parse,
                         Format format_value) {
  using ByRank = std::map<std::int32_t, Value>;
  const auto parse_all = [parse, form](std::string_view text) -> Result<ByRank> {
    ByRank read;
    const Status status = for_each_part(text, [&](std::string_view part) {
      const auto pair = parse_pair(part, form[4], form);
      if (!pair.ok()) return pair.status();
      const auto rank = parse_integer(pair->left, {0, kMaxRanks - 1});
      if (!rank.ok()) return rank.status();
      const Result<Value> value = parse(pair->right);
      if (!value.ok()) return value.status();
      if (!read.emplace(static_cast<std::int32_t>(*rank), *value).second)
        return invalid_argument("rank ", *rank, " is named twice");
      return ok_status();
    });
    if (!status.ok()) return status;
    return read;
  };
  return parsed(field, std::move(name), std::move(kind), std::move(range), parse_all,
                [form, format_value](const ByRank& values) {
                  return format_list(values, [&](const auto& entry) {
                    return concat(entry.first, form.substr(4, 1), format_value(entry.second));
                  });
                });
}

// Makes the row of rules: "BLOCK=VALUE" between commas, with indices into `names` as values. `form`
// describes a part in errors.
template <class Section, class Value>
Setting<Section> rules(std::vector<BlockRule<Value>> Section::*field, SettingName name,
                       std::string kind, std::string_view form,
                       std::span<const std::string_view> names) {
  const auto parse_rule = [form, names](std::string_view part) -> Result<BlockRule<Value>> {
    const auto pair = parse_pair(part, '=', form);
    if (!pair.ok()) return pair.status();
    if (pair->left.empty()) return invalid_argument("expected ", form, ", found no block");
    const auto index = parse_name(pair->right, names);
    if (!index.ok()) return index.status();
    return BlockRule<Value>{std::string(pair->left), static_cast<Value>(*index)};
  };
  return parsed(
      field, std::move(name), std::move(kind), concat("BLOCK=", join(names), ",..."),
      [parse_rule](std::string_view text) {
        return parse_list<BlockRule<Value>>(text, parse_rule);
      },
      [](const auto& all) { return format_list(all, [](const auto& r) { return r.text(); }); });
}

// Refuses rules that contradict each other. `always` is the value that no rule can forbid for a
// block; `what` is the word for a value in errors.
template <class Value>
Status check_rules(std::string_view section, const std::vector<BlockRule<Value>>& force,
                   const std::vector<BlockRule<Value>>& forbid, Value always,
                   std::string_view what) {
  for (const BlockRule<Value>& rule : forbid) {
    if (rule.value == always) {
      return invalid_argument(section, ".forbid has ", rule.text(), ", but ", always,
                              " is always possible; force another ", what, " instead");
    }
    if (std::ranges::find(force, rule) != force.end()) {
      return invalid_argument(section, ".force and ", section, ".forbid both have ", rule.text(),
                              "; remove the rule from one of the two settings");
    }
  }
  return ok_status();
}

// Returns the row of a part as a row of the whole with the part as a member.
template <class Whole, class Part>
Setting<Whole> within(Part Whole::*member, Setting<Part> row) {
  Setting<Whole> made{std::move(row.name), std::move(row.kind), std::move(row.range)};
  made.set = [member, set = std::move(row.set)](Whole& whole, std::string_view value) {
    return set(whole.*member, value);
  };
  made.get = [member, get = std::move(row.get)](const Whole& whole) { return get(whole.*member); };
  if (row.mode) {
    made.mode = [member, mode = std::move(row.mode)](const Whole& whole) {
      return mode(whole.*member);
    };
  }
  made.is_path = row.is_path;
  return made;
}

}  // namespace settings
}  // namespace cox
