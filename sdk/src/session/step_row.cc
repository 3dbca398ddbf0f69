#include "sdk/src/session/step_row.h"

#include <sys/utsname.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "coordinator/core/settings/settings.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {
namespace {

constexpr const char* kTellingPrefixes[] = {"MKL_", "MPIR_CVAR_", "NCCL_", "OMP_"};

std::uint32_t saturated(std::uint64_t value) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(value, most));
}

// What decides threads and transport beside the configuration (which has the COX_ ones). No paths.
std::vector<metrics::NamedField> variables_of(const std::vector<std::string>& environment) {
  std::vector<metrics::NamedField> variables;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || entry.find('/') != std::string::npos) continue;
    const bool counts = std::any_of(std::begin(kTellingPrefixes), std::end(kTellingPrefixes),
                                    [&](const char* prefix) { return entry.starts_with(prefix); });
    if (counts) variables.push_back({entry.substr(0, equals), entry.substr(equals + 1)});
  }
  std::sort(variables.begin(), variables.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return variables;
}

void add_memory(const MemoryReading& memory, metrics::StepRow& row) {
  row.memory_alloc_bytes = row.memory_reserved_bytes = memory.used_bytes;
  row.memory_peak_alloc_bytes = row.memory_peak_reserved_bytes = memory.peak_bytes;
  if (memory.limit_bytes == 0) return;
  row.headroom_bytes =
      static_cast<std::int64_t>(memory.limit_bytes) - static_cast<std::int64_t>(memory.peak_bytes);
}

void add_plan(const Plan& plan, RankId rank, metrics::StepRow& row) {
  row.plan = plan.id.number;
  for (std::size_t b = 0; b < plan.precision.size(); ++b) {
    ++row.precision_blocks[static_cast<std::size_t>(plan.precision[b])];
    const MemoryAction action = action_of(plan, rank, BlockId(static_cast<BlockId::rep>(b)));
    if (action == MemoryAction::recompute) ++row.recomputed_blocks;
    if (action == MemoryAction::offload) ++row.offloaded_blocks;
    if (action == MemoryAction::tile) ++row.tiled_blocks;
  }
}

void add_verdict(const NumbersOfStep& numbers, metrics::StepRow& row) {
  using Where = HealthVerdict::Where;
  if (numbers.verdict.where == Where::nothing) return;
  const bool is_forward = numbers.verdict.where == Where::forward;
  row.set_overflow(numbers.blamed,
                   is_forward ? metrics::OverflowPass::forward : metrics::OverflowPass::backward);
}

void add_numbers(const NumbersOfStep& numbers, metrics::StepRow& row) {
  if (numbers.loss_scale > 0) row.loss_scale = numbers.loss_scale;
  add_verdict(numbers, row);
  double noise = 0;
  std::uint32_t noisy = 0;
  BlockEvidence all;
  for (const BlockEvidence& block : numbers.evidence) {
    merge_into(all, block);
    noise += block.noise_sum;
    noisy += block.noise_count;
  }
  row.sampled_values = all.sampled;
  row.underflow_values = all.underflow;
  row.saturated_values = all.saturated;
  if (noisy > 0) row.gradient_noise = static_cast<float>(noise / noisy);
  if (all.curvature.rank.value() >= 0) row.curvature = all.curvature.value;
}

metrics::FieldValue field_value(const std::string& kind, const std::string& text) {
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (kind == "integer") {
    const auto number = settings::parse_integer(text, {0, most});
    if (number.ok()) return static_cast<std::int64_t>(*number);
  } else if (kind == "number") {
    const double unlimited = std::numeric_limits<double>::max();
    const auto number = settings::parse_number(text, {-unlimited, unlimited});
    if (number.ok()) return *number;
  } else if (kind == "switch") {
    return text == "on";
  }
  return text;
}

// All settings in force, except texts: they may be paths.
std::vector<metrics::NamedField> settings_in_force(const Config& config) {
  std::vector<metrics::NamedField> fields;
  fields.push_back({"seed", static_cast<std::int64_t>(config.run.seed)});  // what tools look for
  for (const ConfigOption& option : config_options(config)) {
    if (option.kind == "text") continue;
    fields.push_back({option.key, field_value(option.kind, option.value)});
  }
  return fields;
}

}  // namespace

RankSignal signal_from(const StepReport& report) {
  RankSignal signal;
  signal.step = report.step;
  signal.flags = report.flags;
  signal.loss = report.loss;
  signal.weight = report.weight;
  signal.gradient_norm = report.gradient_norm;
  signal.wall_seconds = report.wall_seconds;
  for (std::size_t p = 0; p < kPhases; ++p) {
    signal.phase_seconds[p] = static_cast<float>(report.phase_seconds[p]);
  }
  signal.rounds = 1;
  signal.samples = saturated(report.samples);
  signal.tokens = report.tokens;
  signal.nonfinite_values = report.nonfinite_values;
  signal.reduction_seconds = report.reduction_seconds;
  signal.reduction_exposed_seconds = report.reduction_exposed_seconds;
  return signal;
}

RankSignal without_times(RankSignal signal) {
  signal.rounds = 0;
  signal.wall_seconds = 0;
  signal.phase_seconds = {};
  return signal;
}

metrics::StepRow row_from(const StepReport& report, const RowContext& context) {
  metrics::StepRow row;
  row.step = report.step;
  row.round = context.round;
  row.timestamp = context.now.seconds;
  for (std::size_t p = 0; p < kPhases; ++p) {
    row.phase_seconds[p] = static_cast<float>(report.phase_seconds[p]);
  }
  const bool has_loss = report.weight > 0 || !std::isnan(report.loss);
  if (has_loss) row.loss = report.loss;
  if (report.has_gradient_norm) row.gradient_norm = report.gradient_norm;
  row.overflow = report.nonfinite_values;
  add_memory(context.memory, row);
  row.predicted_peak_bytes = context.predicted_peak_bytes;
  row.was_skipped = (report.flags & static_cast<std::uint16_t>(SignalFlag::step_skipped)) != 0;
  add_numbers(context.numbers, row);
  add_plan(context.plan, context.rank, row);
  for (std::size_t i = 0; i < report.scalar_count; ++i) {
    const UserScalar& scalar = report.scalars[i];
    if (std::string_view(scalar.name.data()) == "lr") {
      row.learning_rate = scalar.value;
    } else {
      row.add_scalar(scalar.name.data(), scalar.value);
    }
  }
  return row;
}

metrics::RunInfo run_info(const Config& config, const RunPlace& place, UnixTime now,
                          const std::vector<std::string>& environment) {
  metrics::RunInfo info;
  info.name = config.run.name;
  info.rank = place.rank;
  info.world_size = place.world_size;
  info.started = now.seconds;
  info.config = settings_in_force(config);
  utsname system{};
  uname(&system);
  const std::string machine = system.machine;
  info.environment = {{"program", place.program},
                      {"platform", std::string(system.sysname) + "-" + system.release},
                      {"machine", machine},
                      {"cpu_count", static_cast<std::int64_t>(transport::usable_cores())},
                      {"torch", std::string(TORCH_VERSION)},
                      {"torch_threads", static_cast<std::int64_t>(at::get_num_threads())},
                      {"cuda_available", torch::cuda::is_available()},
                      {"coxswain", std::string(COX_VERSION)}};
  info.variables = variables_of(environment);
  return info;
}

}  // namespace cox::detail
