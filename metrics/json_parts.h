// Fields that several JSON documents of the API have in common. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "coordinator/core/summary.h"
#include "coordinator/io/json.h"
#include "metrics/analysis/findings/finding.h"

namespace cox::metrics {

// Writes the statistics of a spread, and the rank that has the largest value.
void put_spread(io::JsonWriter& json, std::string_view name, const Spread& spread);

// Writes a field with the values as an array.
template <class Values>
void put_list(io::JsonWriter& json, std::string_view name, const Values& values) {
  json.key(name).begin_array();
  for (const auto& value : values) json.value(value);
  json.end_array();
}

// Writes a finding as an object; what it does not have is left out.
void put_finding(io::JsonWriter& json, const diagnosis::Finding& finding);

// Writes a field that is null where the value is 0 or less, which means that it is not known.
template <class Number>
void put_known(io::JsonWriter& json, std::string_view name, Number value) {
  json.key(name);
  value > 0 ? json.value(value) : json.null();
}

// Writes a field that is null where the id is negative, which means that there is none.
void put_id(io::JsonWriter& json, std::string_view name, std::int64_t id);

}  // namespace cox::metrics
