#include "metrics/api_memory.h"

namespace cox::metrics {
namespace {

void put_known(JsonWriter& json, std::string_view name, std::int64_t bytes) {
  json.key(name);
  bytes > 0 ? json.value(bytes) : json.null();
}

}  // namespace

void put_memory(JsonWriter& json, const Snapshot& s) {
  json.key("memory");
  if (!s.memory) {
    json.null();
    return;
  }
  const MemoryView& view = *s.memory;
  json.begin_object();
  put_known(json, "predicted_peak_bytes", view.predicted_peak_bytes);
  put_known(json, "measured_peak_bytes",
            static_cast<std::int64_t>(s.summary.memory_peak_bytes & ~(std::uint64_t{1} << 63)));
  put_known(json, "keep_all_peak_bytes", view.keep_all_peak_bytes);
  json.field("saved_bytes", view.saved_bytes);
  put_known(json, "budget_bytes", view.budget_bytes);
  const bool has_headroom = s.headroom.tightest.value() >= 0;
  json.key("headroom_bytes");
  has_headroom ? json.value(s.headroom.least_bytes) : json.null();
  json.key("tightest_rank");
  has_headroom ? json.value(s.headroom.tightest.value()) : json.null();
  json.field("over_budget_ranks", s.headroom.over_budget);
  json.field("added_time_ratio", view.added_ratio);
  put_known(json, "resident_bytes", view.resident_bytes);
  json.end_object();
}

void put_held(JsonWriter& json, const HeldBytes& held) {
  json.key("held_bytes").begin_object();
  put_known(json, "parameters", held.parameters);
  put_known(json, "gradients", held.gradients);
  put_known(json, "optimizer", held.optimizer);
  put_known(json, "buckets", held.buckets);
  json.end_object();
}

void put_rank_memory(JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.field("memory_used_bytes", row.memory_used_bytes);
  json.field("memory_peak_bytes", row.memory_peak_bytes);
  json.field("memory_limit_bytes", row.memory_limit_bytes);
  const auto rank = static_cast<std::size_t>(row.rank.value());
  const bool is_planned = s.memory && rank < s.memory->ranks.size();
  const RankMemoryView view = is_planned ? s.memory->ranks[rank] : RankMemoryView{};
  put_known(json, "memory_predicted_peak_bytes", view.predicted_peak_bytes);
  put_known(json, "memory_keep_all_peak_bytes", view.keep_all_peak_bytes);
  put_known(json, "memory_budget_bytes", view.budget_bytes);
  json.field("memory_added_time_ratio", view.added_ratio);
}

void put_action_ranks(JsonWriter& json, const ActionRanks& ranks) {
  json.key("ranks_by_action").begin_object();
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a] > 0) json.field(kMemoryActionNames[a], ranks[a]);
  }
  json.end_object();
}

}  // namespace cox::metrics
