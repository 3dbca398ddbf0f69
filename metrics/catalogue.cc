#include "metrics/catalogue.h"

#include "coordinator/core/job.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/summary.h"

namespace cox::metrics {
namespace {

using Kind = MetricKind;
using Labels = std::vector<LabelInfo>;

template <class Names>
LabelInfo label(std::string name, const Names& values) {
  LabelInfo info{std::move(name), {}, LabelInfo::Set::closed};
  for (const auto& value : values) info.values.emplace_back(value);
  return info;
}

LabelInfo stat_label() {
  return label("stat", std::vector<std::string>{"min", "median", "p95", "max"});
}

LabelInfo slot_label() {
  LabelInfo info{"slot", {}, LabelInfo::Set::closed};
  for (std::size_t slot = 0; slot < kWorstRanks; ++slot)
    info.values.push_back(std::to_string(slot));
  return info;
}

LabelInfo policy_label() {
  LabelInfo info{"policy", {}, LabelInfo::Set::closed};
  for (int k = 0; k <= static_cast<int>(PolicyKind::custom); ++k)
    info.values.emplace_back(to_string(static_cast<PolicyKind>(k)));
  return info;
}

LabelInfo outcome_label() {
  LabelInfo info{"outcome", {}, LabelInfo::Set::closed};
  for (int k = 1; k <= static_cast<int>(Outcome::reported); ++k)
    info.values.emplace_back(to_string(static_cast<Outcome>(k)));
  return info;
}

void add_progress(std::vector<MetricInfo>& all) {
  const std::string g = "Progress";
  const LabelInfo source = label("source", std::vector<std::string>{"loss", "gradient"});
  all.insert(
      all.end(),
      {{g,
        "coxswain_rounds_total",
        Kind::counter,
        "",
        "Rounds that the coordinator has closed",
        {},
        {}},
       {g,
        "coxswain_step",
        Kind::gauge,
        "",
        "Optimizer step of the newest round; goes back after a rollback",
        {},
        {}},
       {g,
        "coxswain_step_duration_seconds",
        Kind::histogram,
        "seconds",
        "Wall time of a step, median over the ranks",
        {},
        step_buckets()},
       {g, "coxswain_samples_total", Kind::counter, "", "Samples trained on by all ranks", {}, {}},
       {g,
        "coxswain_tokens_total",
        Kind::counter,
        "",
        "Tokens trained on by all ranks; 0 where the trainer reports none",
        {},
        {}},
       {g,
        "coxswain_last_round_timestamp_seconds",
        Kind::gauge,
        "seconds",
        "Unix time of the newest round",
        {},
        {}},
       {g,
        "coxswain_start_timestamp_seconds",
        Kind::gauge,
        "seconds",
        "Unix time at which this incarnation of the job started",
        {},
        {}},
       {g,
        "coxswain_loss",
        Kind::gauge,
        "",
        "Weighted mean loss of the newest round; NaN when no rank had a finite one",
        {},
        {}},
       {g,
        "coxswain_gradient_norm",
        Kind::gauge,
        "",
        "Largest gradient norm reported in the newest round; NaN when none was measured",
        {},
        {}},
       {g,
        "coxswain_nonfinite_rounds_total",
        Kind::counter,
        "",
        "Rounds in which a rank reported a loss or gradient that is not finite",
        {source},
        {}},
       {g,
        "coxswain_skipped_rounds_total",
        Kind::counter,
        "",
        "Rounds whose optimizer step was skipped",
        {},
        {}},
       {g,
        "coxswain_rollbacks_total",
        Kind::counter,
        "",
        "Rounds in which ranks went back to a snapshot",
        {},
        {}},
       {g,
        "coxswain_nonfinite_observations_total",
        Kind::counter,
        "",
        "Values kept out of counters and histograms because they were not finite",
        {},
        {}}});
}

void add_ranks(std::vector<MetricInfo>& all) {
  const std::string g = "Ranks";
  const std::string over = "; stat is taken over the ranks before export, so do not sum over it";
  const LabelInfo state =
      label("state", std::vector<std::string>{"training", "finished", "watching", "missing"});
  const LabelInfo phase = label("phase", kPhaseNames);
  all.insert(
      all.end(),
      {{g, "coxswain_world_size", Kind::gauge, "", "Ranks of the job", {}, {}},
       {g,
        "coxswain_ranks",
        Kind::gauge,
        "",
        "Ranks by what they did in the newest round",
        {state},
        {}},
       {g,
        "coxswain_rank_step_duration_seconds",
        Kind::gauge,
        "seconds",
        "Wall time of a step by rank" + over,
        {stat_label()},
        {}},
       {g,
        "coxswain_rank_work_duration_seconds",
        Kind::gauge,
        "seconds",
        "Own work in a step by rank, without waiting for others" + over,
        {stat_label()},
        {}},
       {g,
        "coxswain_phase_duration_seconds",
        Kind::gauge,
        "seconds",
        "Time in a phase of a step by rank" + over,
        {phase, stat_label()},
        {}},
       {g,
        "coxswain_rank_step_skew_ratio",
        Kind::gauge,
        "ratio",
        "Own work of the slowest rank divided by the median; 1 is even",
        {},
        {}},
       {g,
        "coxswain_worst_rank",
        Kind::gauge,
        "",
        "The ranks with most own work, slowest in slot 0; the value is the rank, -1 an empty slot",
        {slot_label()},
        {}},
       {g,
        "coxswain_worst_rank_slowdown_ratio",
        Kind::gauge,
        "ratio",
        "Own work of the rank in that slot divided by the median; 0 in an empty slot",
        {slot_label()},
        {}},
       {g,
        "coxswain_rank_memory_used_ratio",
        Kind::gauge,
        "ratio",
        "Memory in use divided by its limit by rank; 0 where no limit is known" + over,
        {stat_label()},
        {}},
       {g,
        "coxswain_rank_memory_peak_bytes",
        Kind::gauge,
        "bytes",
        "Largest memory high water of a rank in the newest round",
        {},
        {}}});
}

void add_decisions(std::vector<MetricInfo>& all) {
  const std::string g = "Decisions";
  LabelInfo code{"code", {}, LabelInfo::Set::open};
  all.insert(
      all.end(),
      {{g, "coxswain_plans_total", Kind::counter, "", "Plans published", {}, {}},
       {g, "coxswain_plan_id", Kind::gauge, "", "Number of the newest published plan", {}, {}},
       {g,
        "coxswain_plan_applied_id",
        Kind::gauge,
        "",
        "Number of the newest plan that ranks apply",
        {},
        {}},
       {g,
        "coxswain_plan_activation_lag_rounds",
        Kind::gauge,
        "rounds",
        "Rounds from the publication of the newest active plan to its activation",
        {},
        {}},
       {g,
        "coxswain_last_plan_timestamp_seconds",
        Kind::gauge,
        "seconds",
        "Unix time of the newest publication; 0 before the first",
        {},
        {}},
       {g,
        "coxswain_decisions_total",
        Kind::counter,
        "",
        "Reasons given, by policy and outcome; policy none is Decide itself",
        {policy_label(), outcome_label()},
        {}},
       {g,
        "coxswain_reasons_total",
        Kind::counter,
        "",
        "Reasons given, by code; a code appears with its first reason",
        {code},
        {}},
       {g,
        "coxswain_decision_duration_seconds",
        Kind::histogram,
        "seconds",
        "Time to decide on one round",
        {},
        control_buckets()},
       {g,
        "coxswain_incarnation",
        Kind::gauge,
        "",
        "Starts of the job, counting this one",
        {},
        {}}});
}

void add_knobs(std::vector<MetricInfo>& all) {
  const std::string g = "Knobs in the newest plan";
  all.insert(all.end(), {{g,
                          "coxswain_plan_precision_blocks",
                          Kind::gauge,
                          "",
                          "Blocks that compute in a precision",
                          {label("precision", kPrecisionNames)},
                          {}},
                         {g,
                          "coxswain_plan_action_blocks",
                          Kind::gauge,
                          "",
                          "Blocks under a memory action, averaged over the ranks",
                          {label("action", kMemoryActionNames)},
                          {}},
                         {g,
                          "coxswain_plan_cadence_steps",
                          Kind::gauge,
                          "steps",
                          "Local steps between two averagings",
                          {},
                          {}},
                         {g,
                          "coxswain_plan_hold_rounds",
                          Kind::gauge,
                          "rounds",
                          "Rounds for which all knobs still rest after trouble",
                          {},
                          {}}});
}

void add_control(std::vector<MetricInfo>& all) {
  const std::string g = "Control plane";
  const LabelInfo fault =
      label("fault", std::vector<std::string>{"missing", "duplicate", "stale", "damaged"});
  const LabelInfo direction = label("direction", std::vector<std::string>{"up", "down"});
  const LabelInfo version{"version", {}, LabelInfo::Set::open};
  const LabelInfo revision{"revision", {}, LabelInfo::Set::open};
  all.insert(all.end(), {{g,
                          "coxswain_report_faults_total",
                          Kind::counter,
                          "",
                          "Reports of ranks that did not count, by what was wrong with them",
                          {fault},
                          {}},
                         {g,
                          "coxswain_full_plans_resent_total",
                          Kind::counter,
                          "",
                          "Whole plans sent again because a rank had lost track",
                          {},
                          {}},
                         {g,
                          "coxswain_wire_bytes_total",
                          Kind::counter,
                          "bytes",
                          "Control bytes; up are reports of ranks, down are masks",
                          {direction},
                          {}},
                         {g,
                          "coxswain_journal_bytes_total",
                          Kind::counter,
                          "bytes",
                          "Bytes written to the journal",
                          {},
                          {}},
                         {g,
                          "coxswain_journal_errors_total",
                          Kind::counter,
                          "",
                          "Journal records that could not be written",
                          {},
                          {}},
                         {g,
                          "coxswain_build_info",
                          Kind::gauge,
                          "",
                          "Always 1; carries the version",
                          {version, revision},
                          {}}});
}

std::vector<MetricInfo> build() {
  std::vector<MetricInfo> all;
  add_progress(all);
  add_ranks(all);
  add_decisions(all);
  add_knobs(all);
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
