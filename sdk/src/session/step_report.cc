#include "sdk/src/session/step_report.h"

#include <algorithm>
#include <cmath>

#include "sdk/src/blocks/measurement.h"

namespace cox::detail {

void StepNotes::add_loss(double mean, double weight_of_mean) {
  if (weight_of_mean == 0) return;  // the mean of no samples is undefined
  loss_sum += mean * weight_of_mean;
  weight += weight_of_mean;
  loss = loss_sum / weight;
  if (!std::isfinite(mean)) set(SignalFlag::nonfinite_loss);
}

void StepNotes::set_gradient_norm(double value) {
  gradient_norm = value;
  has_gradient_norm = true;
}

void StepNotes::set_reduction(double seconds, double exposed_seconds) {
  reduction_seconds = static_cast<float>(seconds);
  reduction_exposed_seconds = static_cast<float>(exposed_seconds);
}

void StepNotes::log(std::string_view name, double value) {
  const std::string_view key = name.substr(0, sizeof(UserScalar::name) - 1);
  for (std::size_t i = 0; i < scalar_count; ++i) {
    if (key == scalars[i].name.data()) {
      scalars[i].value = value;
      return;
    }
  }
  if (scalar_count == kUserScalars) return;
  UserScalar& scalar = scalars[scalar_count++];
  std::copy(key.begin(), key.end(), scalar.name.begin());
  scalar.value = value;
}

ScalarNames::Verdict ScalarNames::look_at(std::string_view name) {
  constexpr std::size_t kKept = sizeof(metrics::NamedScalar::name) - 1;
  const auto has_same_bytes = [&](const Known& known) {
    return std::string_view(known.name).substr(0, kKept) == name.substr(0, kKept);
  };
  const auto known = std::ranges::find_if(known_, has_same_bytes);
  if (known == known_.end()) {
    known_.push_back({std::string(name), {}});
    return Verdict::distinct;
  }
  if (known->name == name) return Verdict::distinct;
  const auto& told = known->ambiguous;
  if (std::ranges::find(told, name) != told.end()) return Verdict::ambiguous;
  known->ambiguous.emplace_back(name);
  return Verdict::newly_ambiguous;
}

RankSignal signal_from(const StepReport& report) {
  RankSignal signal;
  signal.step = report.step;
  signal.flags = report.flags;
  signal.loss = report.loss;
  signal.weight = report.weight;
  signal.gradient_norm = report.gradient_norm;
  signal.wall_seconds = report.wall_seconds;
  std::ranges::copy(report.phase_seconds, signal.phase_seconds.begin());
  signal.rounds = 1;
  signal.samples = saturated(report.samples);
  signal.tokens = report.tokens;
  signal.nonfinite_values = report.nonfinite_values;
  signal.reduction_seconds = report.reduction_seconds;
  signal.reduction_exposed_seconds = report.reduction_exposed_seconds;
  signal.waiting_seconds = static_cast<float>(report.waiting_seconds);
  signal.save_seconds = static_cast<float>(report.save_seconds);
  return signal;
}

RankSignal without_times(RankSignal signal) {
  signal.rounds = 0;
  signal.wall_seconds = 0;
  signal.phase_seconds = {};
  signal.waiting_seconds = 0;
  signal.save_seconds = 0;
  return signal;
}

metrics::StepRow row_from(const StepReport& report, RoundId round, UnixTime now) {
  metrics::StepRow row;
  row.step = report.step;
  row.round = round;
  row.timestamp = now.seconds;
  std::ranges::copy(report.phase_seconds, row.phase_seconds.begin());
  if (report.has(SignalFlag::waiting_measured))
    row.waiting_seconds = static_cast<float>(report.waiting_seconds);
  row.save_seconds = static_cast<float>(report.save_seconds);
  row.reduction_seconds = report.reduction_seconds;
  row.reduction_exposed_seconds = report.reduction_exposed_seconds;
  const bool has_loss = report.weight > 0 || !std::isnan(report.loss);
  if (has_loss) row.loss = report.loss;
  if (report.has_gradient_norm) row.gradient_norm = report.gradient_norm;
  row.overflow = report.nonfinite_values;
  row.was_skipped = report.has(SignalFlag::step_skipped);
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

}  // namespace cox::detail
