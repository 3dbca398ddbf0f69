#include "metrics/api_parallel.h"

#include <cstdint>

namespace cox::metrics {
namespace {

// 0 is not known.
void put_known(JsonWriter& json, std::string_view name, std::uint64_t value) {
  json.key(name);
  value > 0 ? json.value(value) : json.null();
}

}  // namespace

void put_spread(JsonWriter& json, std::string_view name, const Spread& spread) {
  json.key(name).begin_object();
  json.field("min", spread.min).field("median", spread.median);
  json.field("p95", spread.p95).field("max", spread.max);
  json.field("rank_of_max", spread.rank_of_max.value()).field("count", spread.count);
  json.end_object();
}

void put_parallel(JsonWriter& json, const Snapshot& s) {
  const ParallelView& view = s.parallel;
  json.key("data_parallel").begin_object();
  json.field("step_samples", view.step_samples);
  put_known(json, "planned_step_samples", planned_samples(*s.plan, *s.job));
  put_known(json, "job_step_samples", s.job->global_batch);
  put_known(json, "micro_batch_samples", s.job->micro_batch);
  put_known(json, "fewest_micro_batches", view.micro_batches);
  put_spread(json, "rank_samples", view.rank_samples);
  put_spread(json, "reduction_seconds", view.reduction_seconds);
  put_spread(json, "reduction_exposed_seconds", view.exposed_seconds);
  json.field("reduction_hidden_ratio", hidden_ratio(view));
  json.field("repeated_rounds", s.totals.repeated_rounds).end_object();
}

void put_rank_parallel(JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.field("samples_per_step", row.samples_per_step).key("share_ratio");
  const double all = s.ranks->samples_per_step;
  all > 0 ? json.value(row.samples_per_step / all) : json.null();
  json.field("reduction_seconds", row.reduction_seconds);
  json.field("reduction_exposed_seconds", row.reduction_exposed_seconds);
}

}  // namespace cox::metrics
