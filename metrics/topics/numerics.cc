#include "metrics/topics/numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/topics/progress.h"

namespace cox::metrics {
namespace {

void follow(const Round& round, Snapshot& now) {
  if (auto view = numerics_after(round.record, now.view<NumericsView>()))
    now.views.set(std::move(view));
}

// Reads the largest value of each group of blocks. A group without a known value has no series.
Reader largest(std::function<std::optional<double>(const BlockNumerics&)> get) {
  return open({{"block", {}}}, [get](const Snapshot& s, const Emit& emit) {
    const std::vector<BlockNumerics>& blocks = s.view<NumericsView>().blocks;
    for (const BlockGroup& group : block_groups(*s.job)) {
      std::optional<double> largest;
      for (std::size_t b = group.first; b <= group.last && b < blocks.size(); ++b)
        largest = std::max(largest, get(blocks[b]));
      if (largest) emit(*largest, group.label);
    }
  });
}

Reader largest(Known BlockNumerics::*member) {
  return largest([member](const BlockNumerics& block) {
    const Known& known = block.*member;
    return known.is_known ? std::optional(known.value) : std::nullopt;
  });
}

void overflows_by_block(const Snapshot& s, const Emit& emit) {
  const NumericsView& view = s.view<NumericsView>();
  const auto add = [&emit](std::string_view block, std::size_t pass, std::uint64_t rounds) {
    emit(static_cast<double>(rounds), block, kPassNames[pass]);
  };
  for (std::size_t p = 0; p < kPassNames.size(); ++p) add("outside", p, view.outside_rounds[p]);
  for (const BlockGroup& group : block_groups(*s.job)) {
    if (group.last >= view.blocks.size()) continue;
    for (std::size_t p = 0; p < kPassNames.size(); ++p) {
      std::uint64_t rounds = 0;
      for (std::size_t b = group.first; b <= group.last; ++b)
        rounds += view.blocks[b].overflow_rounds[p];
      add(group.label, p, rounds);
    }
  }
}

std::vector<Metric> scaler_metrics() {
  using S = const Snapshot&;
  return {
      gauge("coxswain_loss_scale", "",
            "What fp16 gradients are multiplied with; 0 where no loss scaler is at work",
            value(&NumericsView::loss_scale)),
      gauge("coxswain_loss_scale_floor", "", "Smallest loss scale that the plan allows",
            value([](S s) { return s.plan->scaler.min_scale; })),
      gauge("coxswain_loss_scale_ceiling", "", "Largest loss scale that the plan allows",
            value([](S s) { return s.plan->scaler.max_scale; })),
      counter("coxswain_overflow_rounds_total",
              "Control rounds in which values that are not finite arose in a block or outside of "
              "all",
              value(&NumericsView::overflow_rounds)),
      counter("coxswain_overflows_total",
              "Control rounds in which values that are not finite arose in that block and pass; "
              "block outside is outside of all blocks",
              open({{"block", {}}, {"pass", {kPassNames.begin(), kPassNames.end()}}},
                   overflows_by_block)),
      gauge("coxswain_last_overflow_timestamp_seconds", "seconds",
            "Unix time of the newest overflow; 0 before the first", value([](S s) {
              const Overflow* last = s.view<NumericsView>().last_overflow();
              return last != nullptr ? last->time.seconds : 0;
            })),
  };
}

std::vector<Metric> block_metrics() {
  using S = const Snapshot&;
  using B = BlockNumerics;
  const std::string newest = "; the newest known one, absent before the first";
  return {
      counter("coxswain_precision_changes_total", "Changes of a block's format that took effect",
              per("from", kPrecisionNames, "to", kPrecisionNames,
                  [](S s, std::size_t from, std::size_t to) {
                    return s.view<NumericsView>().changes[from][to];
                  })),
      gauge(
          "coxswain_block_precision", "",
          "Format that a block computes in: 0 is fp32, 1 bf16, 2 fp16, 3 fp8; the largest of "
          "blocks that share a series",
          largest([](const B& block) { return std::optional(static_cast<double>(block.format)); })),
      gauge("coxswain_block_gradient_noise_ratio", "ratio",
            "Noise of a block's gradients divided by their signal, on the rank where it is least; "
            "1e6 where no signal is seen" +
                newest,
            largest(&B::noise)),
      gauge("coxswain_block_underflow_ratio", "ratio",
            "Sampled values of a block that its format flushed to zero" + newest,
            largest(&B::underflow)),
      gauge("coxswain_block_saturated_ratio", "ratio",
            "Sampled values of a block that its format clipped" + newest, largest(&B::saturated)),
      gauge("coxswain_block_activation_magnitude", "",
            "Largest finite result of a block, over the ranks" + newest, largest(&B::activation)),
      gauge("coxswain_block_gradient_magnitude", "",
            "Largest finite gradient at a block's boundary without the loss scale, over the ranks" +
                newest,
            largest(&B::gradient)),
  };
}

std::vector<Metric> metrics() {
  return joined(scaler_metrics(), block_metrics());
}

void put_overflow(io::JsonWriter& json, const JobFacts& job, const Overflow& overflow) {
  json.begin_object().field("round", overflow.round).field("step", overflow.step);
  json.field("time", overflow.time.seconds).field("block", named_block(job, overflow.block));
  json.field("pass", to_string(overflow.pass));
  put_id(json, "rank", overflow.rank.value());
  json.field("values", overflow.values);
  put_known(json, "loss_scale", overflow.loss_scale);
  json.field("skipped", overflow.was_skipped);
  json.field("text", overflow_text(job, overflow)).end_object();
}

void put_formats(io::JsonWriter& json, const NumericsView& view) {
  const auto blocks = format_blocks(view);
  json.key("format_blocks").begin_object();
  for (std::size_t k = 0; k < blocks.size(); ++k) json.field(kPrecisionNames[k], blocks[k]);
  json.end_object();
}

void put_job(io::JsonWriter& json, const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  json.field("at_work", is_at_work(view));
  put_known(json, "loss_scale", view.loss_scale);
  put_formats(json, view);
  json.field("skipped_rounds", s.view<ProgressView>().skipped_rounds);
  json.field("overflow_rounds", view.overflow_rounds).key("last_overflow");
  const Overflow* last = view.last_overflow();
  last != nullptr ? put_overflow(json, *s.job, *last) : static_cast<void>(json.null());
}

void put_rules(io::JsonWriter& json, const ScalerRules& rules) {
  json.key("scaler").begin_object().field("initial_scale", rules.initial_scale);
  json.field("growth_factor", rules.growth_factor).field("backoff_factor", rules.backoff_factor);
  json.field("growth_interval", rules.growth_interval).field("min_scale", rules.min_scale);
  json.field("max_scale", rules.max_scale).field("hysteresis", rules.hysteresis);
  json.field("headroom_bits", rules.headroom_bits).end_object();
}

void put_known(io::JsonWriter& json, std::string_view name, const Known& known) {
  json.key(name);
  if (!known.is_known) return static_cast<void>(json.null());
  json.begin_object().field("value", known.value);
  if (known.rank.value() >= 0) json.field("rank", known.rank);
  json.field("round", known.round).end_object();
}

void put_reason(io::JsonWriter& json, std::string_view name, const Reason* reason) {
  json.key(name);
  if (reason == nullptr) return static_cast<void>(json.null());
  json.begin_object().field("round", reason->round).field("code", to_string(reason->code));
  json.field("outcome", to_string(reason->outcome)).field("text", reason->text).end_object();
}

void put_block(io::JsonWriter& json, const JobFacts& job, std::size_t index,
               const BlockNumerics& block) {
  json.begin_object().field("name", block_name(job, index));
  json.field("format", to_string(block.format)).field("planned", to_string(block.planned));
  json.field("changes", block.changes).key("changed_round");
  block.changes > 0 ? json.value(block.changed_round) : json.null();
  for (const KnownKind& kind : kKnownKinds) put_known(json, kind.name, block.*kind.member);
  json.key("overflow_rounds").begin_object();
  for (std::size_t p = 0; p < kPassNames.size(); ++p)
    json.field(kPassNames[p], block.overflow_rounds[p]);
  json.end_object();
  put_reason(json, "why", block.why.get());
  put_reason(json, "newest_reason", block.newest.get());
  json.end_object();
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  json.key("numerics").begin_object();
  put_job(json, s);
  json.end_object();
}

Result<std::string> numerics_json(const Snapshot& s, std::string_view) {
  const NumericsView& view = s.view<NumericsView>();
  io::JsonWriter json;
  json.begin_object().field("round", s.summary.round);
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

}  // namespace

std::array<std::int32_t, kPrecisions> format_blocks(const NumericsView& view) {
  std::array<std::int32_t, kPrecisions> blocks{};
  for (const BlockNumerics& block : view.blocks) ++blocks[static_cast<std::size_t>(block.format)];
  return blocks;
}

bool is_at_work(const NumericsView& view) {
  const bool is_plain =
      std::all_of(view.blocks.begin(), view.blocks.end(), [](const BlockNumerics& block) {
        return block.format == Precision::fp32 && block.planned == Precision::fp32 &&
               block.changes == 0;
      });
  return !is_plain || view.loss_scale > 0 || view.overflow_rounds > 0;
}

std::string overflow_text(const JobFacts& job, const Overflow& overflow) {
  std::string text = fmt::format("step {}, round {}: ", grouped(overflow.step.value()),
                                 grouped(overflow.round.value()));
  const auto block = named_block(job, overflow.block);
  text += block ? "block " + *block : "outside of all blocks";
  text += ", " + std::string(to_string(overflow.pass));
  if (overflow.rank.value() >= 0) text += ", rank " + std::to_string(overflow.rank.value());
  text += overflow.values == 0   ? ": a result that is not finite"
          : overflow.values == 1 ? ": 1 value not finite"
                                 : ": " + grouped(overflow.values) + " values not finite";
  if (overflow.loss_scale > 0)
    text += " at loss scale " + scale_text(static_cast<double>(overflow.loss_scale));
  return text + (overflow.was_skipped ? "; the step was skipped" : "");
}

std::string scale_text(double scale) {
  return fmt::format("{}", scale);
}

Topic numerics_topic() {
  return {.title = "Numerics",
          .follow = follow,
          .metrics = metrics,
          .put_status = put_status,
          .documents = {{"/api/v1/numerics", "formats, loss scale and overflows, block by block",
                         numerics_json}},
          .sections = {{"numerics.html", numerics_section}}};
}

}  // namespace cox::metrics
