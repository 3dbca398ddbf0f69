#include "metrics/api_numerics.h"

#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

void put_overflow(JsonWriter& json, const JobFacts& job, const Overflow& overflow) {
  json.begin_object().field("round", overflow.round.value()).field("step", overflow.step.value());
  json.field("time", overflow.time.seconds).key("block");
  if (overflow.block < 0)
    json.null();
  else
    json.value(std::string_view(block_name(job, static_cast<std::size_t>(overflow.block))));
  json.field("pass", to_string(overflow.pass)).key("rank");
  overflow.rank.value() < 0 ? json.null() : json.value(overflow.rank.value());
  json.field("values", overflow.values).key("loss_scale");
  overflow.loss_scale > 0 ? json.value(overflow.loss_scale) : json.null();
  json.field("skipped", overflow.was_skipped);
  json.field("text", std::string_view(overflow_text(job, overflow))).end_object();
}

void put_formats(JsonWriter& json, const NumericsView& view) {
  const auto blocks = format_blocks(view);
  json.key("format_blocks").begin_object();
  for (std::size_t k = 0; k < blocks.size(); ++k) json.field(kPrecisionNames[k], blocks[k]);
  json.end_object();
}

void put_job(JsonWriter& json, const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  json.field("at_work", is_at_work(view)).key("loss_scale");
  view.loss_scale > 0 ? json.value(view.loss_scale) : json.null();
  put_formats(json, view);
  json.field("skipped_rounds", s.totals.skipped_rounds);
  json.field("overflow_rounds", view.overflow_rounds).key("last_overflow");
  if (const Overflow* last = view.last_overflow())
    put_overflow(json, *s.job, *last);
  else
    json.null();
}

void put_rules(JsonWriter& json, const ScalerRules& rules) {
  json.key("scaler").begin_object().field("initial_scale", rules.initial_scale);
  json.field("growth_factor", rules.growth_factor).field("backoff_factor", rules.backoff_factor);
  json.field("growth_interval", rules.growth_interval).field("min_scale", rules.min_scale);
  json.field("max_scale", rules.max_scale).field("hysteresis", rules.hysteresis);
  json.field("headroom_bits", rules.headroom_bits).end_object();
}

void put_ratio(JsonWriter& json, std::string_view name, const KnownRatio& ratio) {
  json.key(name);
  if (!ratio.is_known) {
    json.null();
    return;
  }
  json.begin_object().field("value", ratio.value).field("round", ratio.round.value()).end_object();
}

void put_magnitude(JsonWriter& json, std::string_view name, const KnownMagnitude& known) {
  json.key(name);
  if (!known.is_known) {
    json.null();
    return;
  }
  json.begin_object().field("value", known.value).field("rank", known.rank.value());
  json.field("round", known.round.value()).end_object();
}

void put_reason(JsonWriter& json, std::string_view name, const Reason* reason) {
  json.key(name);
  if (reason == nullptr) {
    json.null();
    return;
  }
  json.begin_object().field("round", reason->round.value()).field("code", to_string(reason->code));
  json.field("outcome", to_string(reason->outcome));
  json.field("text", std::string_view(reason->text)).end_object();
}

void put_block(JsonWriter& json, const JobFacts& job, std::size_t index,
               const BlockNumerics& block) {
  json.begin_object().field("name", std::string_view(block_name(job, index)));
  json.field("format", to_string(block.format)).field("planned", to_string(block.planned));
  json.field("changes", block.changes).key("changed_round");
  block.changes > 0 ? json.value(block.changed_round.value()) : json.null();
  put_ratio(json, "gradient_noise", block.noise);
  put_ratio(json, "underflow", block.underflow);
  put_ratio(json, "saturated", block.saturated);
  put_magnitude(json, "activation", block.activation);
  put_magnitude(json, "gradient", block.gradient);
  put_magnitude(json, "curvature", block.curvature);
  json.key("overflow_rounds").begin_object();
  for (std::size_t p = 0; p < kPassNames.size(); ++p)
    json.field(kPassNames[p], block.overflow_rounds[p]);
  json.end_object();
  put_reason(json, "why", block.why.get());
  put_reason(json, "newest_reason", block.newest.get());
  json.end_object();
}

}  // namespace

void put_numerics(JsonWriter& json, const Snapshot& s) {
  json.key("numerics").begin_object();
  put_job(json, s);
  json.end_object();
}

std::string numerics_json(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  JsonWriter json;
  json.begin_object().field("round", s.summary.round.value());
  put_job(json, s);
  put_rules(json, s.plan->scaler);
  json.key("precision_changes").begin_array();
  for (std::size_t from = 0; from < kPrecisions; ++from) {
    for (std::size_t to = 0; to < kPrecisions; ++to) {
      if (view.changes[from][to] == 0) continue;
      json.begin_object().field("from", kPrecisionNames[from]).field("to", kPrecisionNames[to]);
      json.field("blocks", view.changes[from][to]).end_object();
    }
  }
  json.end_array().key("overflows").begin_array();
  for (auto at = view.overflows.rbegin(); at != view.overflows.rend(); ++at)
    put_overflow(json, *s.job, *at);
  json.end_array().key("blocks").begin_array();
  for (std::size_t b = 0; b < view.blocks.size(); ++b) put_block(json, *s.job, b, view.blocks[b]);
  json.end_array().end_object();
  return json.take();
}

}  // namespace cox::metrics
