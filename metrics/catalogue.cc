#include "metrics/catalogue.h"

#include "coordinator/core/job.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"
#include "metrics/catalogue_group.h"

namespace cox::metrics {
namespace {

LabelInfo stat_label() {
  return label("stat", Names{"min", "median", "p95", "max"});
}

LabelInfo slot_label() {
  LabelInfo info{"slot", {}, LabelInfo::Set::closed};
  for (std::size_t slot = 0; slot < kWorstRanks; ++slot)
    info.values.push_back(std::to_string(slot));
  return info;
}

LabelInfo policy_label() {
  LabelInfo info{"policy", {}, LabelInfo::Set::closed};
  for (const PolicyKind kind : kAllPolicyKinds) info.values.emplace_back(to_string(kind));
  return info;
}

LabelInfo outcome_label() {
  LabelInfo info{"outcome", {}, LabelInfo::Set::closed};
  for (int k = 1; k <= static_cast<int>(Outcome::reported); ++k)
    info.values.emplace_back(to_string(static_cast<Outcome>(k)));
  return info;
}

void add_progress(std::vector<MetricInfo>& all) {
  Group g(all, "Progress");
  g.counter("coxswain_rounds_total",
            "Control rounds that the coordinator has closed; one may cover several steps");
  g.gauge("coxswain_step", "", "Optimizer step of the newest round; goes back after a rollback");
  g.histogram("coxswain_step_duration_seconds", "Wall time of a step, median over the ranks",
              step_buckets());
  g.counter("coxswain_samples_total", "Samples trained on by all ranks");
  g.counter("coxswain_tokens_total",
            "Tokens trained on by all ranks; 0 where the trainer reports none");
  g.gauge("coxswain_last_round_timestamp_seconds", "seconds", "Unix time of the newest round");
  g.gauge("coxswain_start_timestamp_seconds", "seconds",
          "Unix time at which this incarnation of the job started");
  g.gauge("coxswain_loss", "",
          "Weighted mean loss of the newest round; NaN when no rank had a finite one");
  g.gauge("coxswain_gradient_norm", "",
          "Largest gradient norm reported in the newest round; NaN when none was measured");
  g.counter("coxswain_nonfinite_rounds_total",
            "Control rounds in which a rank reported a loss or gradient that is not finite",
            {label("source", Names{"loss", "gradient"})});
  g.counter("coxswain_skipped_rounds_total",
            "Control rounds in which an optimizer step was skipped");
  g.counter("coxswain_rollbacks_total", "Control rounds in which ranks went back to a snapshot");
  g.counter("coxswain_nonfinite_observations_total",
            "Values kept out of counters and histograms because they were not finite");
}

void add_ranks(std::vector<MetricInfo>& all) {
  Group g(all, "Ranks");
  const std::string over = "; stat is taken over the ranks before export, so do not sum over it";
  g.gauge("coxswain_world_size", "", "Ranks of the job");
  g.gauge("coxswain_ranks", "", "Ranks by what they did in the newest round",
          {label("state", Names{"training", "finished", "watching", "missing"})});
  g.gauge("coxswain_rank_step_duration_seconds", "seconds", "Wall time of a step by rank" + over,
          {stat_label()});
  g.gauge("coxswain_rank_work_duration_seconds", "seconds",
          "Own work in a step by rank, without waiting for others" + over, {stat_label()});
  g.gauge("coxswain_phase_duration_seconds", "seconds", "Time in a phase of a step by rank" + over,
          {label("phase", kPhaseNames), stat_label()});
  g.gauge("coxswain_rank_step_skew_ratio", "ratio",
          "Own work of the slowest rank divided by the median; 1 is even");
  g.gauge(
      "coxswain_worst_rank", "",
      "The ranks with most own work, slowest in slot 0; the value is the rank, -1 an empty slot",
      {slot_label()});
  g.gauge("coxswain_worst_rank_slowdown_ratio", "ratio",
          "Own work of the rank in that slot divided by the median; 0 in an empty slot",
          {slot_label()});
  g.gauge("coxswain_rank_memory_used_ratio", "ratio",
          "Memory in use divided by its limit by rank; 0 where no limit is known" + over,
          {stat_label()});
  g.gauge("coxswain_rank_memory_peak_bytes", "bytes",
          "Largest memory high water of a rank in the newest round");
}

void add_decisions(std::vector<MetricInfo>& all) {
  Group g(all, "Decisions");
  g.counter("coxswain_plans_total", "Plans published");
  g.gauge("coxswain_plan_id", "", "Number of the newest published plan");
  g.gauge("coxswain_plan_applied_id", "", "Number of the newest plan that ranks apply");
  g.gauge("coxswain_plan_activation_lag_rounds", "rounds",
          "Rounds from the publication of the newest active plan to its activation");
  g.gauge("coxswain_last_plan_timestamp_seconds", "seconds",
          "Unix time of the newest publication; 0 before the first");
  g.counter("coxswain_decisions_total",
            "Reasons given, by policy and outcome; policy decide is Decide itself",
            {policy_label(), outcome_label()});
  g.counter("coxswain_reasons_total",
            "Reasons given, by code; a code appears with its first reason", {open_label("code")});
  g.histogram("coxswain_decision_duration_seconds", "Time to decide on one round",
              control_buckets());
  g.gauge("coxswain_incarnation", "", "Starts of the job, counting this one");
}

void add_knobs(std::vector<MetricInfo>& all) {
  Group g(all, "Knobs in the newest plan");
  g.gauge("coxswain_plan_precision_blocks", "", "Blocks that compute in a precision",
          {label("precision", kPrecisionNames)});
  g.gauge("coxswain_plan_action_blocks", "",
          "Blocks under a memory action, averaged over the ranks",
          {label("action", kMemoryActionNames)});
  g.gauge("coxswain_plan_hold_rounds", "rounds",
          "Rounds for which all knobs still rest after trouble");
}

void add_memory(std::vector<MetricInfo>& all) {
  Group g(all, "Activation memory");
  const std::string unknown = "; NaN where it is not known, as where memory is not planned";
  g.gauge("coxswain_memory_predicted_peak_bytes", "bytes",
          "Highest peak that a rank is predicted to have under the newest plan" + unknown);
  g.gauge("coxswain_memory_keep_all_peak_bytes", "bytes",
          "Highest peak that a rank is predicted to have with every block kept" + unknown);
  g.gauge("coxswain_memory_budget_bytes", "bytes", "Lowest budget of a rank" + unknown);
  g.gauge("coxswain_memory_headroom_bytes", "bytes",
          "Least that a rank's measured peak of the newest round is below its budget; negative is "
          "over budget" +
              unknown);
  g.gauge("coxswain_memory_tightest_rank", "",
          "The rank with that headroom; -1 where none is known");
  g.gauge("coxswain_memory_over_budget_ranks", "ranks",
          "Ranks whose measured peak of the newest round is above their budget");
  g.gauge(
      "coxswain_memory_added_time_ratio", "ratio",
      "Most time that the newest plan is predicted to add to a rank's step, divided by the step "
      "with every block kept" +
          unknown);
  g.gauge("coxswain_memory_resident_bytes", "bytes",
          "What a rank holds all through a step (parameters, gradients, optimizer state, buckets), "
          "most of a rank" +
              unknown);
  g.gauge("coxswain_memory_held_bytes", "bytes",
          "What every rank holds beside activations, by what it is: gradients are those at the end "
          "of a backward pass, optimizer is its state after the first step; "
          "NaN where it is not known",
          {label("kind", Names{"parameters", "gradients", "optimizer", "buckets"})});
  g.gauge("coxswain_memory_activation_bytes", "bytes",
          "What blocks hold for the backward pass, most of a rank: all of them when every one is "
          "kept, and those that the newest plan keeps" +
              unknown,
          {label("blocks", Names{"all", "kept_by_plan"})});
}

void add_control(std::vector<MetricInfo>& all) {
  Group g(all, "Control plane");
  g.counter("coxswain_report_faults_total",
            "Reports of ranks that did not count, by what was wrong with them; those of another "
            "incarnation count as damaged",
            {label("fault", Names{"missing", "duplicate", "stale", "damaged"})});
  g.counter("coxswain_full_plans_resent_total",
            "Whole plans sent again because a rank had lost track");
  g.counter("coxswain_wire_bytes_total", "Control bytes; up are reports of ranks, down are masks",
            {label("direction", Names{"up", "down"})}, "bytes");
  g.counter("coxswain_journal_bytes_total", "Bytes written to the journal", {}, "bytes");
  g.counter("coxswain_journal_errors_total", "Journal records that could not be written");
  g.gauge("coxswain_build_info", "", "Always 1; carries the version",
          {open_label("version"), open_label("revision")});
}

std::vector<MetricInfo> build() {
  std::vector<MetricInfo> all;
  add_progress(all);
  add_ranks(all);
  add_decisions(all);
  add_knobs(all);
  add_parallel_metrics(all);
  add_memory(all);
  add_numerics_metrics(all);
  add_control(all);
  return all;
}

}  // namespace

std::string_view to_string(MetricKind kind) {
  switch (kind) {
    case MetricKind::counter:
      return "counter";
    case MetricKind::gauge:
      return "gauge";
    case MetricKind::histogram:
      return "histogram";
  }
  return "unknown";
}

const std::vector<double>& step_buckets() {
  static const std::vector<double> bounds = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                                             2,    5,    10,   20,  50,  100};
  return bounds;
}

const std::vector<double>& control_buckets() {
  static const std::vector<double> bounds = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3,
                                             5e-3, 0.01, 0.02, 0.05, 0.1,  0.2,  0.5,  1};
  return bounds;
}

const std::vector<MetricInfo>& catalogue() {
  static const std::vector<MetricInfo> all = build();
  return all;
}

const MetricInfo* find_metric(std::string_view name) {
  for (const MetricInfo& info : catalogue()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

}  // namespace cox::metrics
