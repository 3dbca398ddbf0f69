// Fields that several JSON documents of the API have in common. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "coordinator/core/summary.h"
#include "coordinator/io/json.h"

namespace cox::metrics {

// The statistics of a spread, and whose the largest is.
void put_spread(io::JsonWriter& json, std::string_view name, const Spread& spread);

// A field that is null where the value is 0 or less, which means that it is not known.
template <class Number>
void put_known(io::JsonWriter& json, std::string_view name, Number value) {
  json.key(name);
  value > 0 ? json.value(value) : json.null();
}

// A field that is null where the id is negative, which means that there is none.
void put_id(io::JsonWriter& json, std::string_view name, std::int64_t id);

}  // namespace cox::metrics
