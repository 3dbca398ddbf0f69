#include "metrics/catalogue_group.h"

namespace cox::metrics {

void add_parallel_metrics(std::vector<MetricInfo>& all) {
  Group g(all, "Data parallel");
  const std::string over = "; stat is taken over the ranks before export, so do not sum over it";
  const LabelInfo stat = label("stat", Names{"min", "median", "p95", "max"});
  g.gauge("coxswain_step_samples", "samples",
          "Samples that ranks reported for a step of the newest round: the effective batch");
  g.gauge("coxswain_plan_step_samples", "samples",
          "Samples of a step under the newest plan; 0 where that is the loop's own business");
  g.gauge("coxswain_rank_step_samples", "samples", "Samples of a rank in a step" + over, {stat});
  g.gauge("coxswain_accumulation_anchor", "",
          "Micro-batches of a step on the rank that had fewest; 0 where the job has no fixed "
          "micro-batch");
  g.gauge("coxswain_reduction_duration_seconds", "seconds",
          "Time of a step's gradient buckets from launch to result, summed over buckets, by rank" +
              over,
          {stat});
  g.gauge("coxswain_reduction_exposed_duration_seconds", "seconds",
          "The part of it after the end of the backward pass, which nothing hides, by rank" + over,
          {stat});
  g.gauge("coxswain_reduction_hidden_ratio", "ratio",
          "Part of the reduction's time that the backward pass hid, of the medians over the ranks; "
          "NaN where nothing was reduced");
  g.counter("coxswain_repeated_rounds_total",
            "Control rounds in which a step was done again, because an exact sum was out of range");
}

}  // namespace cox::metrics
