#include "metrics/records/run_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "coordinator/core/job.h"
#include "coordinator/io/json.h"

namespace cox::metrics {
namespace {

// Indexed by Phase. The host phase has its own field, so that no tool counts host time as step
// time.
constexpr std::array<std::string_view, kPhases> kPhaseKeys = {
    "data", "forward", "backward", "compute", "comm", "optimizer", "other", ""};

// Indexed by OverflowPass.
constexpr std::array<std::string_view, 4> kPassNames = {"", "forward", "backward", "parameters"};

template <class Number>
std::string bare_number(Number value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return io::json_number(value);
}

// Writes a number that was measured.
template <class Number>
void put_number(io::JsonWriter& json, std::string_view name, Number value) {
  if (value != std::numeric_limits<Number>::max()) json.key(name).raw(bare_number(value));
}

void put_phases(io::JsonWriter& json, const StepRow& row) {
  json.key("phases").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (!kPhaseKeys[p].empty() && row.phase_seconds[p] != 0)
      json.key(kPhaseKeys[p]).raw(bare_number(row.phase_seconds[p]));
  }
  json.end_object();
}

void put_scalars(io::JsonWriter& json, const StepRow& row) {
  json.key("scalars").begin_object();
  put_number(json, "loss", row.loss);
  put_number(json, "grad_norm", row.gradient_norm);
  put_number(json, "lr", row.learning_rate);
  // A scalar of the program does not replace an agreed value of the same name.
  const auto is_there = [&row](std::string_view name) {
    return (name == "loss" && row.loss != kNotMeasured) ||
           (name == "grad_norm" && row.gradient_norm != kNotMeasured) ||
           (name == "lr" && row.learning_rate != kNotMeasured);
  };
  for (const NamedScalar& scalar : row.scalars) {
    const std::string_view name(scalar.name.data());
    if (!name.empty() && !is_there(name)) put_number(json, name, scalar.value);
  }
  json.end_object();
}

void put_memory(io::JsonWriter& json, const StepRow& row) {
  if (row.memory_alloc_bytes == 0 && row.memory_peak_alloc_bytes == 0) return;
  json.key("memory").begin_object();
  json.field("alloc", row.memory_alloc_bytes).field("reserved", row.memory_reserved_bytes);
  json.field("peak_alloc", row.memory_peak_alloc_bytes);
  json.field("peak_reserved", row.memory_peak_reserved_bytes);
  if (row.predicted_peak_bytes > 0) json.field("predicted_peak", row.predicted_peak_bytes);
  if (row.allocator.reserved_bytes > 0) {
    json.field("active", row.allocator.active_bytes);
    json.field("inactive_split", row.allocator.inactive_split_bytes);
    json.field("free", row.allocator.free_bytes);
  }
  json.end_object();
}

// Writes the fields that have a value. In fp32 with nothing sampled, there are none.
void put_numerics(io::JsonWriter& json, const StepRow& row) {
  if (row.overflow_pass != OverflowPass::none) {
    json.field("overflow_block", std::string_view(row.overflow_block.data()));
    json.field("overflow_pass", kPassNames[static_cast<std::size_t>(row.overflow_pass)]);
  }
  if (row.was_skipped) json.field("skipped", true);
  if (row.sampled_values > 0) {
    json.field("sampled", row.sampled_values).field("underflow", row.underflow_values);
    json.field("saturated", row.saturated_values);
  }
  put_number(json, "grad_noise", row.gradient_noise);
}

void put_control(io::JsonWriter& json, const StepRow& row) {
  json.field("round", row.round).field("plan", row.plan);
  json.key("precision").begin_object();
  for (std::size_t k = 0; k < row.precision_blocks.size(); ++k) {
    if (row.precision_blocks[k] > 0) json.field(kPrecisionNames[k], row.precision_blocks[k]);
  }
  json.end_object().field("recomputed_blocks", row.recomputed_blocks);
  json.field("offloaded_blocks", row.offloaded_blocks).field("tiled_blocks", row.tiled_blocks);
  if (row.headroom_bytes >= 0) json.field("headroom", row.headroom_bytes);
  json.field("overflow", row.overflow);
  put_number(json, "loss_scale", row.loss_scale);
  put_numerics(json, row);
  const float host = row.phase_seconds[static_cast<std::size_t>(Phase::host)];
  if (host != 0) json.key("host").raw(bare_number(host));
  put_number(json, "waiting", row.waiting_seconds);
  if (row.recompute_seconds > 0) json.key("recompute").raw(bare_number(row.recompute_seconds));
  if (row.reduction_seconds > 0) {
    json.key("reduction").raw(bare_number(row.reduction_seconds));
    json.key("reduction_exposed").raw(bare_number(row.reduction_exposed_seconds));
  }
  if (row.save_seconds > 0) json.key("save").raw(bare_number(row.save_seconds));
}

void put_buckets(io::JsonWriter& json, const StepBuckets& buckets) {
  json.key("buckets").begin_array();
  for (const StepBuckets::Span& span : std::span(buckets.spans).first(buckets.count)) {
    json.begin_array().value(span.buckets).value(span.bytes);
    json.raw(bare_number(span.begin_seconds)).raw(bare_number(span.end_seconds)).end_array();
  }
  json.end_array();
}

void put_fields(io::JsonWriter& json, const std::vector<NamedField>& fields) {
  for (const NamedField& field : fields) {
    json.key(field.name);
    std::visit([&json](const auto& value) { json.value(value); }, field.value);
  }
}

// Returns the text after `"key":` in our own JSON; empty if the key is missing.
std::string_view after_key(std::string_view json, std::string_view key) {
  const std::string quoted = fmt::format("\"{}\":", key);
  const auto at = json.find(quoted);
  return at == std::string_view::npos ? std::string_view() : json.substr(at + quoted.size());
}

double number_of(std::string_view json, std::string_view key) {
  const std::string_view text = after_key(json, key);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return std::isfinite(value) ? value : 0;
}

std::string text_of(std::string_view json, std::string_view key) {
  std::string_view text = after_key(json, key);
  if (text.empty() || text.front() != '"') return {};
  text.remove_prefix(1);
  std::size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return std::string(text.substr(0, end));
}

}  // namespace

WrittenRun read_run_json(std::string_view json) {
  WrittenRun run;
  run.name = text_of(json, "name");
  run.started = std::max(0.0, number_of(json, "started"));
  run.wall_time = std::max(0.0, number_of(json, "wall_time"));
  return run;
}

std::size_t kept_bytes(std::string_view text, std::optional<StepId> resume_step) {
  std::size_t keep = text.rfind('\n') + 1;  // npos + 1 = 0
  while (resume_step && keep > 0) {
    const auto before = keep >= 2 ? text.rfind('\n', keep - 2) : std::string_view::npos;
    const std::size_t start = before == std::string_view::npos ? 0 : before + 1;
    const double step = number_of(text.substr(start, keep - start), "step");
    if (step < static_cast<double>(resume_step->value())) break;
    keep = start;
  }
  return keep;
}

std::string step_line(const StepRow& row, const StepBuckets* buckets) {
  io::JsonWriter json;
  json.begin_object().field("step", row.step).field("timestamp", row.timestamp);
  put_phases(json, row);
  put_scalars(json, row);
  put_memory(json, row);
  put_control(json, row);
  if (buckets != nullptr) put_buckets(json, *buckets);
  json.end_object();
  return json.take() + "\n";
}

std::string run_json(const RunInfo& info, const RunProgress& progress) {
  io::JsonWriter json;
  json.begin_object().field("name", info.name).key("config").begin_object();
  put_fields(json, info.config);
  json.end_object().field("rank", info.rank).field("world_size", info.world_size);
  json.key("environment").begin_object();
  put_fields(json, info.environment);
  if (!info.variables.empty()) {
    json.key("env").begin_object();
    put_fields(json, info.variables);
    json.end_object();
  }
  json.end_object().field("started", info.started).field("wall_time", progress.wall_time);
  json.field("n_steps", progress.n_steps).field("dropped_rows", progress.dropped_rows);
  json.end_object();
  return json.take() + "\n";
}

}  // namespace cox::metrics
