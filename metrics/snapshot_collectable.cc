#include "metrics/snapshot_collectable.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "metrics/family_builder.h"
#include "metrics/numerics_families.h"
#include "metrics/parallel_families.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

double as_double(std::uint64_t value) {
  return static_cast<double>(value);
}

void set_progress(FamilyBuilder& out, const Snapshot& s) {
  const Totals& totals = s.totals;
  out.set("coxswain_rounds_total", as_double(totals.control.rounds));
  out.set("coxswain_step", as_double(s.summary.step.value()));
  out.set("coxswain_step_duration_seconds", totals.step_seconds);
  out.set("coxswain_samples_total", as_double(totals.samples));
  out.set("coxswain_tokens_total", as_double(totals.tokens));
  out.set("coxswain_last_round_timestamp_seconds", s.last_round_time.seconds);
  out.set("coxswain_start_timestamp_seconds", s.started.seconds);
  out.set("coxswain_loss", s.summary.loss);
  out.set("coxswain_gradient_norm", s.summary.gradient_norm);
  out.set("coxswain_nonfinite_rounds_total", {"loss"}, as_double(totals.nonfinite_loss_rounds));
  out.set("coxswain_nonfinite_rounds_total", {"gradient"},
          as_double(totals.nonfinite_gradient_rounds));
  out.set("coxswain_skipped_rounds_total", as_double(totals.skipped_rounds));
  out.set("coxswain_rollbacks_total", as_double(totals.rollbacks));
  out.set("coxswain_nonfinite_observations_total", as_double(totals.nonfinite_observations));
}

void set_phases(FamilyBuilder& out, const StepSummary& summary) {
  constexpr const char* kName = "coxswain_phase_duration_seconds";
  for (std::size_t p = 0; p < kPhases; ++p) {
    const Spread& spread = summary.phases[p];
    out.set(kName, {kPhaseNames[p], "min"}, spread.min);
    out.set(kName, {kPhaseNames[p], "median"}, spread.median);
    out.set(kName, {kPhaseNames[p], "p95"}, spread.p95);
    out.set(kName, {kPhaseNames[p], "max"}, spread.max);
  }
}

void set_worst(FamilyBuilder& out, const StepSummary& summary) {
  for (std::size_t slot = 0; slot < kWorstRanks; ++slot) {
    const bool used = slot < summary.worst.size();
    const std::string label = std::to_string(slot);
    out.set("coxswain_worst_rank", {label}, used ? summary.worst[slot].rank.value() : -1);
    out.set("coxswain_worst_rank_slowdown_ratio", {label},
            used ? summary.worst[slot].slowdown_ratio : 0);
  }
}

void set_ranks(FamilyBuilder& out, const Snapshot& s) {
  const StepSummary& summary = s.summary;
  const RankCounts counts = rank_counts(s);
  out.set("coxswain_world_size", s.job->world_size);
  out.set("coxswain_ranks", {"training"}, counts.training);
  out.set("coxswain_ranks", {"finished"}, counts.finished);
  out.set("coxswain_ranks", {"watching"}, counts.watching);
  out.set("coxswain_ranks", {"missing"}, counts.missing);
  set_spread(out, "coxswain_rank_step_duration_seconds", summary.wall_seconds);
  set_spread(out, "coxswain_rank_work_duration_seconds", summary.own_seconds);
  set_phases(out, summary);
  out.set("coxswain_rank_step_skew_ratio", skew_ratio(summary));
  set_worst(out, summary);
  set_spread(out, "coxswain_rank_memory_used_ratio", summary.memory_used_ratio);
  out.set("coxswain_rank_memory_peak_bytes", as_double(summary.memory_peak_bytes));
}

void set_decisions(FamilyBuilder& out, const Snapshot& s) {
  const Totals& totals = s.totals;
  out.set("coxswain_plans_total", as_double(totals.control.plans_published));
  out.set("coxswain_plan_id", as_double(s.plan->id.number));
  out.set("coxswain_plan_applied_id", as_double(s.summary.plan_applied_max));
  out.set("coxswain_plan_activation_lag_rounds", as_double(s.plan_times.activation_lag_rounds));
  out.set("coxswain_last_plan_timestamp_seconds", s.plan_times.last_published.seconds);
  for (const PolicyKind kind : kAllPolicyKinds) {
    for (std::size_t outcome = 1; outcome < kOutcomes; ++outcome) {
      out.set("coxswain_decisions_total",
              {to_string(kind), to_string(static_cast<Outcome>(outcome))},
              as_double(totals.decisions[static_cast<std::size_t>(kind)][outcome]));
    }
  }
  std::map<std::string_view, std::uint64_t> by_label;  // codes of users share one
  for (const CodeCount& code : totals.codes) by_label[to_string(code.code)] += code.count;
  for (const auto& [label, count] : by_label)
    out.set("coxswain_reasons_total", {label}, as_double(count));
  out.set("coxswain_decision_duration_seconds", totals.decide_seconds);
  out.set("coxswain_incarnation", s.job->incarnation);
}

void set_knobs(FamilyBuilder& out, const Snapshot& s) {
  const KnobMix mix = knob_mix(*s.plan, s.job->world_size);
  for (std::size_t k = 0; k < mix.precision_blocks.size(); ++k)
    out.set("coxswain_plan_precision_blocks", {kPrecisionNames[k]}, mix.precision_blocks[k]);
  for (std::size_t k = 0; k < mix.action_blocks.size(); ++k)
    out.set("coxswain_plan_action_blocks", {kMemoryActionNames[k]}, mix.action_blocks[k]);
  const std::uint64_t hold = s.plan->hold_until.value();
  const std::uint64_t round = s.summary.round.value();
  out.set("coxswain_plan_hold_rounds", as_double(hold > round ? hold - round : 0));
}

double known_bytes(std::int64_t bytes) {
  return bytes > 0 ? static_cast<double>(bytes) : kUnknown;
}

void set_memory(FamilyBuilder& out, const Snapshot& s) {
  const MemoryView none;
  const MemoryView& view = s.memory ? *s.memory : none;
  const bool has_headroom = s.headroom.tightest.value() >= 0;
  out.set("coxswain_memory_predicted_peak_bytes", known_bytes(view.predicted_peak_bytes));
  out.set("coxswain_memory_keep_all_peak_bytes", known_bytes(view.keep_all_peak_bytes));
  out.set("coxswain_memory_budget_bytes", known_bytes(view.budget_bytes));
  out.set("coxswain_memory_headroom_bytes",
          has_headroom ? static_cast<double>(s.headroom.least_bytes) : kUnknown);
  out.set("coxswain_memory_tightest_rank", s.headroom.tightest.value());
  out.set("coxswain_memory_over_budget_ranks", s.headroom.over_budget);
  out.set("coxswain_memory_added_time_ratio", view.added_ratio);
  out.set("coxswain_memory_resident_bytes", known_bytes(view.resident_bytes));
  constexpr const char* kHeld = "coxswain_memory_held_bytes";
  out.set(kHeld, {"parameters"}, known_bytes(s.held.parameters));
  out.set(kHeld, {"gradients"}, known_bytes(s.held.gradients));
  out.set(kHeld, {"optimizer"}, known_bytes(s.held.optimizer));
  out.set(kHeld, {"buckets"}, known_bytes(s.held.buckets));
  const bool knows_blocks = view.keep_all_block_bytes > 0;
  out.set("coxswain_memory_activation_bytes", {"all"}, known_bytes(view.keep_all_block_bytes));
  out.set("coxswain_memory_activation_bytes", {"kept_by_plan"},
          knows_blocks ? static_cast<double>(view.plan_kept_block_bytes) : kUnknown);
}

void set_control(FamilyBuilder& out, const Snapshot& s, const BuildInfo& build) {
  const ControlCounters& control = s.totals.control;
  out.set("coxswain_report_faults_total", {"missing"}, as_double(control.missing_reports));
  out.set("coxswain_report_faults_total", {"duplicate"}, as_double(control.duplicate_reports));
  out.set("coxswain_report_faults_total", {"stale"}, as_double(control.stale_reports));
  out.set("coxswain_report_faults_total", {"damaged"}, as_double(control.damaged_reports));
  out.set("coxswain_full_plans_resent_total", as_double(control.full_plans_resent));
  out.set("coxswain_wire_bytes_total", {"up"}, as_double(control.signal_bytes));
  out.set("coxswain_wire_bytes_total", {"down"}, as_double(control.mask_bytes));
  out.set("coxswain_journal_bytes_total", as_double(control.journal_bytes));
  out.set("coxswain_journal_errors_total", as_double(control.journal_errors));
  out.set("coxswain_build_info", {build.version, build.revision}, 1);
}

}  // namespace

std::vector<prometheus::MetricFamily> families(const Snapshot& snapshot, const BuildInfo& build) {
  FamilyBuilder out;
  set_progress(out, snapshot);
  set_ranks(out, snapshot);
  set_decisions(out, snapshot);
  set_knobs(out, snapshot);
  set_parallel(out, snapshot);
  set_memory(out, snapshot);
  set_numerics(out, snapshot);
  set_control(out, snapshot, build);
  return out.take();
}

SnapshotCollectable::SnapshotCollectable(Source source, BuildInfo build)
    : source_(std::move(source)), build_(std::move(build)) {}

std::vector<prometheus::MetricFamily> SnapshotCollectable::Collect() const {
  return families(*source_(), build_);
}

}  // namespace cox::metrics
