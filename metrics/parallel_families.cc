#include "metrics/parallel_families.h"

namespace cox::metrics {

void set_parallel(FamilyBuilder& out, const Snapshot& s) {
  const ParallelView& view = s.parallel;
  out.set("coxswain_step_samples", view.step_samples);
  out.set("coxswain_plan_step_samples", static_cast<double>(planned_samples(*s.plan, *s.job)));
  set_spread(out, "coxswain_rank_step_samples", view.rank_samples);
  out.set("coxswain_accumulation_anchor", static_cast<double>(view.micro_batches));
  set_spread(out, "coxswain_reduction_duration_seconds", view.reduction_seconds);
  set_spread(out, "coxswain_reduction_exposed_duration_seconds", view.exposed_seconds);
  out.set("coxswain_reduction_hidden_ratio", hidden_ratio(view));
  out.set("coxswain_repeated_rounds_total", static_cast<double>(s.totals.repeated_rounds));
}

}  // namespace cox::metrics
