// Writes fields that several JSON documents of the API have in common. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "coordinator/core/summary.h"
#include "coordinator/io/json.h"
#include "metrics/analysis/findings/finding.h"

namespace cox::metrics {

// Writes the statistics of a spread, and the rank with the largest value.
void put_spread(io::JsonWriter& json, std::string_view name, const Spread& spread);

// Writes a field with the values as an array.
template <class Values>
void put_list(io::JsonWriter& json, std::string_view name, const Values& values) {
  json.key(name).begin_array();
  for (const auto& value : values) json.value(value);
  json.end_array();
}

// Writes a finding as an object without the finding's empty members.
void put_finding(io::JsonWriter& json, const diagnosis::Finding& finding);

// Writes a number, or null for 0 and below, which mean "not known".
template <class Number>
void put_known(io::JsonWriter& json, std::string_view name, Number value) {
  json.key(name);
  value > 0 ? json.value(value) : json.null();
}

// Writes an id, or null for a negative one, which means "none".
void put_id(io::JsonWriter& json, std::string_view name, std::int64_t id);

}  // namespace cox::metrics
