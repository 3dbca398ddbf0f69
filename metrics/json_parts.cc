#include "metrics/json_parts.h"

namespace cox::metrics {

void put_spread(io::JsonWriter& json, std::string_view name, const Spread& spread) {
  json.key(name).begin_object();
  json.field("min", spread.min).field("median", spread.median);
  json.field("p95", spread.p95).field("max", spread.max);
  json.field("rank_of_max", spread.rank_of_max).field("count", spread.count);
  json.end_object();
}

void put_finding(io::JsonWriter& json, const diagnosis::Finding& f) {
  json.begin_object().field("code", f.code).field("severity", to_string(f.severity));
  json.field("title", f.title).field("detail", f.detail).field("suggestion", f.suggestion);
  if (!f.ranks.empty()) put_list(json, "ranks", f.ranks);
  if (!f.evidence.empty()) {
    json.key("evidence").begin_object();
    for (const diagnosis::Evidence& e : f.evidence) json.field(e.name, e.value);
    json.end_object();
  }
  if (f.cost_seconds) json.field("cost_seconds", *f.cost_seconds).field("cost_share", f.cost_share);
  json.end_object();
}

void put_id(io::JsonWriter& json, std::string_view name, std::int64_t id) {
  json.key(name);
  id < 0 ? json.null() : json.value(id);
}

}  // namespace cox::metrics
