// How rows of the table of settings are made, by kind of value. Internal to the table's sources:
// config_table.cc, config_memory.cc, config_precision.cc and config_parallel.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/core/config_table.h"
#include "coordinator/core/config_values.h"

namespace cox::config_rows {

namespace values = config_values;

// What a row says besides its kind and range.
struct Words {
  std::string key;
  std::string unit;
  std::string help;
  Scope scope = Scope::job;
};

inline ConfigRow row(const Words& words, std::string kind, std::string range) {
  ConfigRow made;
  made.option = {words.key, std::move(kind), std::move(range), words.unit, "", words.help};
  made.scope = words.scope;
  return made;
}

// `field` maps a Config, const or not, to the setting itself.
template <class Field>
ConfigRow integer(const Words& words, values::IntegerRange range, Field field) {
  ConfigRow made =
      row(words, "integer", std::to_string(range.min) + " .. " + std::to_string(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    const Result<std::uint64_t> value = values::parse_integer(text, range);
    if (!value.ok()) return value.status();
    field(config) = static_cast<std::remove_reference_t<decltype(field(config))>>(*value);
    return ok_status();
  };
  made.get = [field](const Config& config) { return std::to_string(field(config)); };
  return made;
}

template <class Field>
ConfigRow number(const Words& words, values::NumberRange range, Field field) {
  ConfigRow made =
      row(words, "number", values::format(range.min) + " .. " + values::format(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    const Result<double> value = values::parse_number(text, range);
    if (value.ok()) {
      field(config) = static_cast<std::remove_reference_t<decltype(field(config))>>(*value);
    }
    return value.status();
  };
  made.get = [field](const Config& config) { return values::format(field(config)); };
  return made;
}

// An enum whose values count through `names`.
template <class Field>
ConfigRow choice(const Words& words, std::string kind, std::span<const std::string_view> names,
                 Field field) {
  ConfigRow made = row(words, std::move(kind), values::join(names));
  made.set = [names, field](Config& config, std::string_view text) {
    const Result<std::size_t> index = values::parse_name(text, names);
    if (!index.ok()) return index.status();
    field(config) = static_cast<std::remove_reference_t<decltype(field(config))>>(*index);
    return ok_status();
  };
  made.get = [names, field](const Config& config) {
    return std::string(names[static_cast<std::size_t>(field(config))]);
  };
  return made;
}

template <class Field>
ConfigRow flag(const Words& words, Field field) {
  ConfigRow made = row(words, "switch", values::join(values::kSwitchNames));
  made.set = [field](Config& config, std::string_view text) {
    const Result<bool> value = values::parse_switch(text);
    if (value.ok()) field(config) = *value;
    return value.status();
  };
  made.get = [field](const Config& config) {
    return std::string(values::kSwitchNames[field(config) ? 1 : 0]);
  };
  return made;
}

template <class Field>
ConfigRow words_of(const Words& words, Field field) {
  ConfigRow made = row(words, "text", "any text");
  made.set = [field](Config& config, std::string_view text) {
    field(config) = std::string(text);
    return ok_status();
  };
  made.get = [field](const Config& config) { return field(config); };
  return made;
}

template <class Field>
ConfigRow list(const Words& words, values::IntegerRange range, Field field) {
  ConfigRow made =
      row(words, "list", "each " + std::to_string(range.min) + " .. " + std::to_string(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    Result<std::vector<std::uint32_t>> value = values::parse_list(text, range);
    if (value.ok()) field(config) = *std::move(value);
    return value.status();
  };
  made.get = [field](const Config& config) { return values::format(field(config)); };
  return made;
}

// A value with a text form of its own: `parse` reads it, `format` writes it back.
template <class Field, class Parse, class Format>
ConfigRow parsed(const Words& words, std::string kind, std::string range, Parse parse,
                 Format format, Field field) {
  ConfigRow made = row(words, std::move(kind), std::move(range));
  made.set = [parse, field](Config& config, std::string_view text) {
    auto value = parse(text);
    if (value.ok()) field(config) = *std::move(value);
    return value.status();
  };
  made.get = [format, field](const Config& config) { return format(field(config)); };
  return made;
}

// A mode that may also be left to what else is set: an empty optional, "auto".
template <class Field>
ConfigRow auto_mode(const Words& words, Field field) {
  return parsed(words, "mode", values::join(values::kAutoModeNames), values::parse_auto_mode,
                values::format_auto_mode, field);
}

// The settings of these names and a dot.
void add_memory(std::vector<ConfigRow>& table);
void add_precision(std::vector<ConfigRow>& table);
void add_loss_scale(std::vector<ConfigRow>& table);
void add_reduction(std::vector<ConfigRow>& table);
void add_shares(std::vector<ConfigRow>& table);
void add_accumulation(std::vector<ConfigRow>& table);

}  // namespace cox::config_rows

// Maps a Config, const or not, to one of its fields.
#define COX_FIELD(path)  \
  [](auto& c) -> auto& { \
    return c.path;       \
  }
