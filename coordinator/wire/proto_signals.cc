#include <algorithm>
#include <string>

#include "coordinator/wire/proto_convert.h"

namespace cox::wire {
namespace {

template <std::size_t N>
std::string without_trailing_zeros(const std::array<std::byte, N>& bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), N);
  text.erase(text.find_last_not_of('\0') + 1);
  return text;
}

// False when there are more bytes than places.
template <std::size_t N>
bool fill(std::array<std::byte, N>& into, std::string_view text) {
  if (text.size() > N) return false;
  std::transform(text.begin(), text.end(), into.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return true;
}

pb::Magnitude to_proto(const Magnitude& value) {
  pb::Magnitude message;
  message.set_value(value.value);
  message.set_rank(value.rank.value());
  return message;
}

Magnitude magnitude_of(const pb::Magnitude& message) {
  return {message.value(), RankId(message.rank())};
}

pb::Evidence to_proto(const BlockEvidence& value) {
  pb::Evidence message;
  message.set_overflow_forward(value.overflow_forward);
  message.set_overflow_backward(value.overflow_backward);
  message.set_saturated(value.saturated);
  message.set_underflow(value.underflow);
  message.set_sampled(value.sampled);
  *message.mutable_activation() = to_proto(value.activation);
  *message.mutable_gradient() = to_proto(value.gradient);
  *message.mutable_curvature() = to_proto(value.curvature);
  *message.mutable_underflow_ratio() = to_proto(value.underflow_ratio);
  *message.mutable_saturated_ratio() = to_proto(value.saturated_ratio);
  *message.mutable_signal_over_noise() = to_proto(value.signal_over_noise);
  message.set_noise_sum(value.noise_sum);
  message.set_noise_count(value.noise_count);
  message.set_rank_of_overflow(value.rank_of_overflow.value());
  return message;
}

BlockEvidence evidence_of(const pb::Evidence& message) {
  BlockEvidence value;
  value.overflow_forward = message.overflow_forward();
  value.overflow_backward = message.overflow_backward();
  value.saturated = message.saturated();
  value.underflow = message.underflow();
  value.sampled = message.sampled();
  value.activation = magnitude_of(message.activation());
  value.gradient = magnitude_of(message.gradient());
  value.curvature = magnitude_of(message.curvature());
  value.underflow_ratio = magnitude_of(message.underflow_ratio());
  value.saturated_ratio = magnitude_of(message.saturated_ratio());
  value.signal_over_noise = magnitude_of(message.signal_over_noise());
  value.noise_sum = message.noise_sum();
  value.noise_count = message.noise_count();
  value.rank_of_overflow = RankId(message.rank_of_overflow());
  return value;
}

Status read_fragment(const pb::Signal& message, Fragment& fragment) {
  constexpr std::size_t kPayload = sizeof(Fragment::payload);
  if (message.fragment_kind() > 65535 || message.fragment_size() > kPayload ||
      !fill(fragment.payload, message.fragment()))
    return wrong_field("signal.fragment", "at most 60 bytes");
  fragment.kind = static_cast<FragmentKind>(message.fragment_kind());
  fragment.size = static_cast<std::uint16_t>(message.fragment_size());
  return ok_status();
}

void read_measures(const pb::Signal& message, RankSignal& signal) {
  signal.plan_held = message.plan_held();
  signal.plan_applied = message.plan_applied();
  signal.loss = message.loss();
  signal.weight = message.weight();
  signal.gradient_norm = message.gradient_norm();
  signal.wall_seconds = message.wall_seconds();
  signal.rounds = message.rounds();
  signal.samples = message.samples();
  signal.nonfinite_values = message.nonfinite_values();
  signal.control_errors = message.control_errors();
  signal.tokens = message.tokens();
  signal.memory_used_bytes = message.memory_used_bytes();
  signal.memory_peak_bytes = message.memory_peak_bytes();
  signal.memory_limit_bytes = message.memory_limit_bytes();
  signal.loss_scale = message.loss_scale();
  signal.reduction_seconds = message.reduction_seconds();
  signal.reduction_exposed_seconds = message.reduction_exposed_seconds();
}

}  // namespace

pb::Signal to_proto(const RankSignal& value) {
  pb::Signal message;
  message.set_flags(value.flags);
  message.set_rank(value.rank.value());
  message.set_incarnation(value.incarnation);
  message.set_round(value.round.value());
  message.set_step(value.step.value());
  message.set_plan_held(value.plan_held);
  message.set_plan_applied(value.plan_applied);
  message.set_loss(value.loss);
  message.set_weight(value.weight);
  message.set_gradient_norm(value.gradient_norm);
  message.set_wall_seconds(value.wall_seconds);
  message.mutable_phase_seconds()->Assign(value.phase_seconds.begin(), value.phase_seconds.end());
  message.set_rounds(value.rounds);
  message.set_samples(value.samples);
  message.set_nonfinite_values(value.nonfinite_values);
  message.set_control_errors(value.control_errors);
  message.set_tokens(value.tokens);
  message.set_memory_used_bytes(value.memory_used_bytes);
  message.set_memory_peak_bytes(value.memory_peak_bytes);
  message.set_memory_limit_bytes(value.memory_limit_bytes);
  message.set_fragment_kind(static_cast<std::uint32_t>(value.fragment.kind));
  message.set_fragment_size(value.fragment.size);
  message.set_fragment(without_trailing_zeros(value.fragment.payload));
  message.set_loss_scale(value.loss_scale);
  message.set_reduction_seconds(value.reduction_seconds);
  message.set_reduction_exposed_seconds(value.reduction_exposed_seconds);
  message.set_reserved_bytes(without_trailing_zeros(value.reserved));
  message.set_checksum(value.checksum);
  return message;
}

Result<RankSignal> from_proto(const pb::Signal& message) {
  RankSignal signal;
  if (message.flags() > 65535) return wrong_field("signal.flags", "16 bits");
  signal.flags = static_cast<std::uint16_t>(message.flags());
  signal.rank = RankId(message.rank());
  signal.incarnation = message.incarnation();
  signal.round = RoundId(message.round());
  signal.step = StepId(message.step());
  read_measures(message, signal);
  if (message.phase_seconds_size() > static_cast<int>(kPhases))
    return wrong_field("signal.phase_seconds", "at most 8 phases");
  std::copy(message.phase_seconds().begin(), message.phase_seconds().end(),
            signal.phase_seconds.begin());
  if (Status status = read_fragment(message, signal.fragment); !status.ok()) return status;
  if (!fill(signal.reserved, message.reserved_bytes()))
    return wrong_field("signal.reserved_bytes", "at most 16 bytes");
  signal.checksum = message.checksum();
  return signal;
}

pb::StepSignals to_proto(const StepSignals& value) {
  pb::StepSignals message;
  message.set_round(value.round.value());
  message.set_now(value.now.seconds);
  for (const RankSignal& report : value.reports) *message.add_reports() = to_proto(report);
  for (const FaultyReport& faulty : value.faults) {
    pb::FaultyReport& part = *message.add_faults();
    part.set_rank(faulty.rank.value());
    part.set_fault(static_cast<std::uint32_t>(faulty.fault));
    part.set_round(faulty.round.value());
  }
  for (const BlockEvidence& block : value.evidence) *message.add_evidence() = to_proto(block);
  return message;
}

Result<StepSignals> from_proto(const pb::StepSignals& message) {
  StepSignals signals;
  signals.round = RoundId(message.round());
  signals.now = {message.now()};
  signals.reports.reserve(static_cast<std::size_t>(message.reports_size()));
  for (const pb::Signal& part : message.reports()) {
    Result<RankSignal> report = from_proto(part);
    if (!report.ok()) return report.status();
    signals.reports.push_back(*report);
  }
  for (const pb::FaultyReport& part : message.faults()) {
    if (part.fault() > 255) return wrong_field("fault", "a small number");
    signals.faults.push_back(
        {RankId(part.rank()), static_cast<ReportFault>(part.fault()), RoundId(part.round())});
  }
  for (const pb::Evidence& part : message.evidence()) signals.evidence.push_back(evidence_of(part));
  return signals;
}

}  // namespace cox::wire
