#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/io/json.h"
#include "metrics/command/analysis_report.h"
#include "metrics/json_parts.h"

namespace cox::tools {
namespace {

using diagnosis::BudgetLine;
using diagnosis::Finding;
using io::JsonWriter;

void put_texts(JsonWriter& out, const char* name, const std::vector<std::string>& texts) {
  out.new_line(1);
  metrics::put_list(out, name, texts);
}

// Begins an object of that name, or writes null for an empty value. Returns whether an object
// began.
template <class Value>
bool begin_object(JsonWriter& out, const char* name, const std::optional<Value>& value) {
  out.key(name);
  value ? out.begin_object() : out.null();
  return value.has_value();
}

void put_findings(JsonWriter& out, const std::vector<Finding>& findings) {
  out.new_line(1).key("findings").begin_array();
  for (const Finding& f : findings) {
    out.new_line(2);
    metrics::put_finding(out, f);
  }
  out.end_array();
}

void put_timing(JsonWriter& out, const diagnosis::Timing& t) {
  out.new_line(1).key("timing").begin_object().field("n_steps", t.steps);
  out.field("mean_step_time", t.mean_seconds).field("std_step_time", t.deviation_seconds);
  out.field("p50_step_time", t.p50_seconds).field("p95_step_time", t.p95_seconds);
  out.field("steps_per_sec", t.steps_per_second()).field("total_time", t.total_seconds);
  out.key("phase_seconds").begin_object();
  for (const auto& phase : t.phases) out.field(phase.name, phase.seconds);
  out.end_object().key("phase_fractions").begin_object();
  for (const auto& phase : t.phases) out.field(phase.name, phase.fraction);
  out.end_object().key("phase_order").begin_array();
  for (const auto& phase : t.phases) out.value(phase.name);
  out.end_array().field("cv", t.variation()).field("p95_p50_ratio", t.tail_ratio()).end_object();
}

void put_memory(JsonWriter& out, const diagnosis::MemoryUse& m) {
  out.new_line(1).key("memory").begin_object().field("has_memory", m.is_there);
  out.field("n_steps", m.steps).field("peak_alloc_bytes", m.peak_alloc_bytes);
  out.field("peak_reserved_bytes", m.peak_reserved_bytes);
  out.field("mean_alloc_bytes", m.mean_alloc_bytes).field("fragmentation", m.fragmentation);
  out.field("growth_bytes_per_step", m.growth_bytes_per_step).end_object();
}

void put_convergence(JsonWriter& out, const diagnosis::Convergence& c) {
  out.new_line(1).key("convergence").begin_object().field("has_loss", c.has_loss);
  out.field("has_grad_norm", c.has_gradient_norm).field("n_steps", c.steps);
  out.field("final_loss", c.final_loss).field("best_loss", c.best_loss);
  out.field("loss_trend", to_string(c.trend)).field("diverged_at", c.diverged_at);
  metrics::put_list(out, "loss_spikes", c.loss_spikes);
  metrics::put_list(out, "grad_norm_spikes", c.gradient_spikes);
  out.end_object();
}

void put_rank(JsonWriter& out, const diagnosis::RankFigures& r) {
  out.begin_object().field("rank", r.rank).field("mean_compute", r.mean_compute_seconds);
  out.field("median_compute", r.median_compute_seconds).field("slowest_count", r.slowest_count);
  out.field("slowest_fraction", r.slowest_fraction).field("straggler_z", r.z);
  out.field("rel_slowdown", r.slowdown).end_object();
}

void put_distributed(JsonWriter& out, const std::optional<diagnosis::Distributed>& d) {
  if (!begin_object(out.new_line(1), "distributed", d)) return;
  out.field("world_size", d->ranks.size()).field("n_steps", d->steps);
  out.field("mean_step_wall", d->mean_wall_seconds);
  out.field("mean_comm_fraction", d->mean_comm_fraction).field("imbalance_cv", d->variation);
  out.field("sync_skew", d->skew_seconds).field("wall_frac_lost_to_imbalance", d->lost_fraction);
  out.key("ranks").begin_array();
  for (const auto& rank : d->ranks) put_rank(out, rank);
  out.end_array().key("straggler");
  if (d->straggler) {
    put_rank(out, d->ranks[*d->straggler]);
  } else {
    out.null();
  }
  out.end_object();
}

void put_trace(JsonWriter& out, const std::optional<diagnosis::KernelTrace>& t) {
  if (!begin_object(out.new_line(1), "trace", t)) return;
  out.field("wall_time", t->wall_seconds);
  out.field("total_comm_time", t->communication_seconds);
  out.field("total_compute_time", t->compute_seconds);
  out.field("exposed_comm_time", t->exposed_seconds);
  out.field("overlapped_comm_time", t->overlapped_seconds());
  out.field("n_comm_kernels", t->communication_kernels);
  out.field("n_compute_kernels", t->compute_kernels).key("per_collective").begin_object();
  for (const auto& [kind, seconds] : t->collective_seconds) out.field(kind, seconds);
  out.end_object().field("overlap_efficiency", t->overlap());
  out.field("exposed_comm_fraction", t->exposed_fraction()).end_object();
}

// Writes the published keys of a schedule. A run without a schedule has no such member.
void put_pipeline(JsonWriter& out, const std::optional<diagnosis::Pipeline>& p) {
  if (!p) return;
  out.new_line(1).key("pipeline").begin_object().field("n_stages", p->stage_bubbles.size());
  out.field("makespan", p->makespan_seconds).field("total_busy", p->busy_seconds);
  out.field("bubble_fraction", p->bubble).key("per_stage_bubble").begin_object();
  for (const auto& [stage, bubble] : p->stage_bubbles) out.field(std::to_string(stage), bubble);
  out.end_object().field("n_microbatches", p->microbatches);
  out.field("ideal_bubble_fraction", p->ideal_bubble).field("busiest_stage", p->busiest_stage);
  out.field("idlest_stage", p->idlest_stage).field("excess_bubble", p->excess()).end_object();
}

// Writes the figures of each device for Coxswain's own rules, if a trace has several devices.
void put_devices(JsonWriter& out, const std::optional<diagnosis::KernelTrace>& t) {
  if (!t || t->devices.size() < 2) return;
  out.new_line(1).key("trace_devices").begin_array();
  for (const diagnosis::DeviceTrace& device : t->devices) {
    out.begin_object().field("device", device.device).field("wall_time", device.wall_seconds);
    out.field("total_comm_time", device.communication_seconds);
    out.field("total_compute_time", device.compute_seconds);
    out.field("exposed_comm_time", device.exposed_seconds).end_object();
  }
  out.end_array();
}

void put_lines(JsonWriter& out, const std::vector<BudgetLine>& lines) {
  out.key("lines").begin_array();
  for (const BudgetLine& line : lines) {
    out.begin_object().field("name", line.name).field("seconds", line.seconds);
    out.field("fraction", line.fraction).field("recoverable", line.is_recoverable).end_object();
  }
  out.end_array();
}

void put_efficiency(JsonWriter& out, const std::optional<diagnosis::Efficiency>& e) {
  if (!begin_object(out.new_line(1), "efficiency", e)) return;
  out.field("wall", e->wall_seconds).field("n_steps", e->steps);
  out.field("compute_measured", e->compute_seconds).field("ideal_compute", e->ideal_seconds);
  out.field("mfu", e->mfu).field("flops_per_step", e->flops_per_step);
  out.field("peak_flops", e->peak_flops);
  put_lines(out, e->lines);
  out.field("efficiency", e->useful_fraction()).end_object();
}

void put_causes(JsonWriter& out, const std::array<double, diagnosis::kIdleCauses>& seconds,
                const std::map<std::int32_t, double>& waited_for) {
  out.key("seconds").begin_object();
  for (std::size_t c = 0; c < seconds.size(); ++c)
    out.field(key_of(static_cast<diagnosis::IdleCause>(c)), seconds[c]);
  out.end_object().key("waiting_for").begin_object();
  for (const auto& [rank, each] : waited_for) out.field(std::to_string(rank), each);
  out.end_object();
}

// Writes the idle time of the host timeline. A run without a timeline has no such member.
void put_idle(JsonWriter& out, const std::optional<diagnosis::IdleTime>& idle) {
  if (!idle) return;
  out.new_line(1).key("idle").begin_object().field("watched_seconds", idle->watched_seconds);
  put_causes(out, idle->seconds, idle->waited_for);
  out.key("ranks").begin_array();
  for (const diagnosis::RankIdle& rank : idle->ranks) {
    out.begin_object().field("rank", rank.rank).field("node", rank.node);
    out.field("watched_seconds", rank.watched_seconds);
    put_causes(out, rank.seconds, rank.waited_for);
    out.end_object();
  }
  out.end_array().end_object();
}

// Writes the keys of Coxswain's own rules: figures of all ranks without their warm-up.
void put_own(JsonWriter& out, const Analysis& analysis) {
  const diagnosis::Budget& b = analysis.budget;
  out.new_line(1).key("budget").begin_object().field("wall_seconds", b.wall_seconds);
  out.field("n_steps", analysis.view.size()).field("warmup_steps", analysis.view.warmup);
  out.field("mfu", b.mfu).field("flops_per_step", b.flops_per_step);
  out.field("peak_flops", b.peak_flops);
  put_lines(out, b.lines);
  out.end_object();
  put_devices(out, analysis.figures.trace);
  put_idle(out, analysis.idle);
  put_texts(out, "gaps", analysis.run->gaps);
}

void put_settings(JsonWriter& out, const char* name,
                  const std::vector<diagnosis::SettingDiff>& diffs) {
  out.new_line(1).key(name).begin_array();
  for (const auto& diff : diffs) {
    out.begin_object().field("key", diff.key).key("a").raw(diff.a).key("b").raw(diff.b);
    out.end_object();
  }
  out.end_array();
}

void put_plan_event(JsonWriter& out, const char* name,
                    const std::optional<diagnosis::PlanEvent>& event) {
  if (!begin_object(out, name, event)) return;
  out.field("step", event->step).field("round", event->round);
  out.field("plan", event->plan);
  put_texts(out, "changes", event->changes);
  put_texts(out, "reasons", event->reasons);
  out.end_object();
}

void put_own_diff(JsonWriter& out, const diagnosis::RunDiff& diff) {
  put_texts(out, "differences", diff.differences);
  put_texts(out, "explanation", diff.explanation);
  put_texts(out, "gaps", diff.gaps);
  if (begin_object(out.new_line(1), "loss_difference", diff.loss)) {
    out.field("step", diff.loss->step).field("rank", diff.loss->rank);
    out.field("a", diff.loss->a).field("b", diff.loss->b);
    out.field("plan_a", diff.loss->plan_a).field("plan_b", diff.loss->plan_b).end_object();
  }
  if (begin_object(out.new_line(1), "time_ratio", diff.time)) {
    out.field("ratio", diff.time->ratio).field("low", diff.time->low);
    out.field("high", diff.time->high).end_object();
  }
  out.new_line(1).field("plans_differ_at", diff.plans_differ_at);
  if (!begin_object(out.new_line(1), "plans", diff.plans)) return;
  put_plan_event(out, "a", diff.plans->a);
  put_plan_event(out, "b", diff.plans->b);
  out.end_object();
}

}  // namespace

std::string analysis_json(const Analysis& analysis) {
  const diagnosis::Figures& figures = analysis.figures;
  JsonWriter out;
  out.begin_object();
  put_findings(out, analysis.findings);
  put_timing(out, figures.timing);
  put_memory(out, figures.memory);
  put_convergence(out, figures.convergence);
  put_distributed(out, figures.distributed);
  put_trace(out, figures.trace);
  put_pipeline(out, figures.pipeline);
  put_efficiency(out, figures.efficiency);
  if (analysis.rules == RuleSet::coxswain) put_own(out, analysis);
  out.new_line().end_object();
  return out.take() + "\n";
}

std::string diff_json(const diagnosis::RunDiff& diff, RuleSet rules, const std::string& a,
                      const std::string& b) {
  JsonWriter out;
  out.begin_object().new_line(1).field("a", a).field("b", b);
  out.field("name_a", diff.name_a).field("name_b", diff.name_b);
  put_settings(out, "env_diffs", diff.environment);
  put_settings(out, "config_diffs", diff.config);
  out.new_line(1).key("metric_diffs").begin_array();
  for (const auto& metric : diff.metrics) {
    out.begin_object().field("key", metric.key).field("a", metric.a).field("b", metric.b);
    out.field("delta", metric.delta()).end_object();
  }
  out.end_array().new_line(1).field("first_divergence_step", diff.first_divergence);
  out.field("identical_trajectory", diff.is_identical);
  put_texts(out, "notes", diff.published_notes);
  if (rules == RuleSet::coxswain) put_own_diff(out, diff);
  out.new_line().end_object();
  return out.take() + "\n";
}

}  // namespace cox::tools
