#include "metrics/json_parts.h"

namespace cox::metrics {

void put_spread(io::JsonWriter& json, std::string_view name, const Spread& spread) {
  json.key(name).begin_object();
  json.field("min", spread.min).field("median", spread.median);
  json.field("p95", spread.p95).field("max", spread.max);
  json.field("rank_of_max", spread.rank_of_max).field("count", spread.count);
  json.end_object();
}

void put_id(io::JsonWriter& json, std::string_view name, std::int64_t id) {
  json.key(name);
  id < 0 ? json.null() : json.value(id);
}

}  // namespace cox::metrics
