#include "metrics/api.h"

#include <algorithm>

#include "metrics/api_memory.h"
#include "metrics/api_numerics.h"
#include "metrics/api_parallel.h"
#include "metrics/format.h"
#include "metrics/health.h"
#include "metrics/json_writer.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

const char* state_name(JobState state) {
  switch (state) {
    case JobState::waiting:
      return "waiting";
    case JobState::training:
      return "training";
    case JobState::finished:
      return "finished";
  }
  return "unknown";
}

void put_progress(JsonWriter& json, const Snapshot& s) {
  const StepSummary& summary = s.summary;
  json.field("round", summary.round.value()).field("step", summary.step.value());
  json.field("loss", summary.loss).field("first_loss", s.first_loss);
  json.field("gradient_norm", summary.gradient_norm);
  json.field("samples_total", s.totals.samples).field("tokens_total", s.totals.tokens);
  const auto& points = s.points;
  json.field(summary.tokens > 0 ? "tokens_per_second" : "samples_per_second",
             points.size() > 0 ? points[points.size() - 1].rate_per_second : 0.0);
  json.field("skipped_rounds", s.totals.skipped_rounds).field("rollbacks", s.totals.rollbacks);
  json.field("nonfinite_ranks", summary.nonfinite_ranks);
}

void put_ranks(JsonWriter& json, const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  json.key("ranks").begin_object();
  json.field("world_size", s.job->world_size).field("training", counts.training);
  json.field("finished", counts.finished).field("watching", counts.watching);
  json.field("missing", counts.missing).field("skew_ratio", skew_ratio(s.summary));
  put_spread(json, "wall_seconds", s.summary.wall_seconds);
  put_spread(json, "own_seconds", s.summary.own_seconds);
  put_spread(json, "memory_used_ratio", s.summary.memory_used_ratio);
  json.key("phases").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) put_spread(json, kPhaseNames[p], s.summary.phases[p]);
  json.end_object();
  json.key("worst").begin_array();
  for (const WorstRank& worst : s.summary.worst) {
    json.begin_object().field("rank", worst.rank.value()).field("phase", to_string(worst.phase));
    json.field("own_seconds", worst.own_seconds).field("slowdown_ratio", worst.slowdown_ratio);
    json.end_object();
  }
  json.end_array().end_object();
}

void put_plan_ids(JsonWriter& json, const Snapshot& s) {
  const Plan& plan = *s.plan;
  json.field("incarnation", plan.id.incarnation).field("number", plan.id.number);
  json.field("earliest_round", plan.earliest_round.value()).key("activated_round");
  if (plan.activated_round)
    json.value(plan.activated_round->value());
  else
    json.null();
  json.field("applied_number", s.summary.plan_applied_max);
}

void put_reason(JsonWriter& json, const JobFacts& job, const DecisionEntry& entry) {
  const Reason& reason = entry.reason;
  json.begin_object().field("policy", to_string(reason.policy));
  json.field("code", to_string(reason.code)).field("outcome", to_string(reason.outcome));
  json.field("first_round", entry.first_round.value())
      .field("last_round", entry.last_round.value());
  json.field("count", entry.count).field("time", entry.last_time.seconds);
  json.field("plan", entry.plan).key("rank");
  reason.rank.value() < 0 ? json.null() : json.value(reason.rank.value());
  json.key("block");
  reason.block < 0 ? json.null() : json.value(reason.block);
  json.key("block_name");
  const auto block = static_cast<std::size_t>(std::max(reason.block, 0));
  reason.block < 0 ? json.null() : json.value(std::string_view(block_name(job, block)));
  json.field("text", std::string_view(reason.text)).end_object();
}

void put_rank(JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.begin_object().field("rank", row.rank.value()).field("round", row.round.value());
  json.field("step", row.step.value()).field("rounds_covered", row.rounds);
  json.field("loss", row.loss).field("gradient_norm", row.gradient_norm);
  json.field("wall_seconds", row.wall_seconds).field("own_seconds", row.own_seconds);
  json.field("slowdown_ratio", row.slowdown_ratio).field("worst_phase", to_string(row.worst_phase));
  json.key("phase_seconds").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) json.field(kPhaseNames[p], row.phase_seconds[p]);
  json.end_object();
  json.field("samples", row.samples).field("control_errors", row.control_errors);
  put_rank_parallel(json, s, row);
  put_rank_memory(json, s, row);
  json.field("plan_held", row.plan_held).field("plan_applied", row.plan_applied);
  json.field("flags", row.flags).end_object();
}

}  // namespace

std::string status_json(const Served& served) {
  const Snapshot& s = *served.snapshot;
  JsonWriter json;
  json.begin_object().field("job", std::string_view(s.job->name));
  json.field("state", state_name(s.state)).field("incarnation", s.job->incarnation);
  json.field("started", s.started.seconds).field("now", served.now.seconds);
  json.field("last_round_time", s.last_round_time.seconds);
  json.field("live", std::string_view(liveness(s, served.now).reason));
  json.field("ready", std::string_view(readiness(s).reason));
  put_progress(json, s);
  put_ranks(json, s);
  json.key("plan").begin_object();
  put_plan_ids(json, s);
  json.end_object();
  put_parallel(json, s);
  put_memory(json, s);
  put_held(json, s.held);
  put_numerics(json, s);
  json.end_object();
  return json.take();
}

// What the block costs on the rank where it costs most; nothing before it was measured.
void put_cost(JsonWriter& json, const Snapshot& s, std::size_t block) {
  if (!s.costs || block >= s.costs->size() || !(*s.costs)[block].is_known) return;
  const BlockCost& cost = (*s.costs)[block];
  json.field("parameters", cost.profile.parameters);
  json.field("saved_bytes", cost.profile.saved_bytes);
  json.field("forward_seconds", static_cast<double>(cost.profile.forward_seconds));
  json.field("backward_seconds", static_cast<double>(cost.profile.backward_seconds));
  json.field("measured_on_rank", cost.rank.value());
}

std::string plan_json(const Snapshot& s) {
  const Plan& plan = *s.plan;
  JsonWriter json;
  json.begin_object();
  put_plan_ids(json, s);
  json.field("step_samples", plan.step_samples);
  json.field("hold_until", plan.hold_until.value());
  put_memory(json, s);
  const auto actions = action_ranks(plan, s.job->world_size);
  json.key("blocks").begin_array();
  for (std::size_t block = 0; block < plan.precision.size(); ++block) {
    json.begin_object().field("name", std::string_view(block_name(*s.job, block)));
    json.field("precision", to_string(plan.precision[block]));
    put_action_ranks(json, actions[block]);
    put_cost(json, s, block);
    json.end_object();
  }
  json.end_array().key("profiles").begin_array();
  const auto sizes = profile_sizes(plan, s.job->world_size);
  for (std::size_t c = 0; c < plan.profiles.size(); ++c) {
    json.begin_object().field("ranks", sizes[c]).key("actions").begin_array();
    for (const MemoryAction action : plan.profiles[c]) json.value(to_string(action));
    json.end_array().end_object();
  }
  json.end_array().key("shares").begin_array();
  for (const std::uint32_t share : plan.shares) json.value(share);
  json.end_array().key("rollback").begin_object();
  json.field("ticket", plan.rollback.ticket);
  json.field("before_round", plan.rollback.before_round.value()).end_object().end_object();
  return json.take();
}

std::string ranks_json(const Snapshot& s, Page page) {
  const RankTable& table = *s.ranks;
  const std::uint64_t total = table.rows.size();
  const std::uint64_t first = std::min(page.offset, total);
  const std::uint64_t last = std::min(total, first + std::min(page.limit, kMaxPage));
  JsonWriter json;
  json.begin_object().field("round", table.round.value()).field("time", table.time.seconds);
  json.field("world_size", s.job->world_size).field("reported", total).field("offset", first);
  json.key("next_offset");
  last < total ? json.value(last) : json.null();
  json.key("ranks").begin_array();
  for (std::uint64_t i = first; i < last; ++i) put_rank(json, s, table.rows[i]);
  json.end_array().key("faults").begin_array();
  for (std::size_t i = 0; i < std::min<std::size_t>(table.faults.size(), kMaxPage); ++i) {
    const FaultyReport& fault = table.faults[i];
    json.begin_object().field("rank", fault.rank.value()).field("fault", to_string(fault.fault));
    json.field("round", fault.round.value()).end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string decisions_json(const Snapshot& s, RoundId since) {
  JsonWriter json;
  json.begin_object().field("round", s.summary.round.value()).key("decisions").begin_array();
  for (auto at = s.decisions->rbegin(); at != s.decisions->rend(); ++at) {
    if ((*at)->last_round >= since) put_reason(json, *s.job, **at);
  }
  json.end_array().end_object();
  return json.take();
}

std::string config_json(const std::vector<Setting>& settings) {
  JsonWriter json;
  json.begin_object();
  for (const Setting& setting : settings) {
    json.key(setting.key).begin_object().field("value", std::string_view(setting.value));
    json.field("unit", std::string_view(setting.unit));
    json.field("help", std::string_view(setting.help)).end_object();
  }
  json.end_object();
  return json.take();
}

std::string version_json(const BuildInfo& build) {
  JsonWriter json;
  json.begin_object().field("name", "coxswain").field("version", std::string_view(build.version));
  json.field("revision", std::string_view(build.revision)).end_object();
  return json.take();
}

}  // namespace cox::metrics
