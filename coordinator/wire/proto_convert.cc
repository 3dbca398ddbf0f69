#include "coordinator/wire/proto_convert.h"

#include <algorithm>
#include <string>

#include "coordinator/wire/plan_codec.h"

namespace cox::wire {
namespace {

constexpr std::size_t kActionsPerByte = 4;

std::string packed(const std::vector<MemoryAction>& actions) {
  std::string bytes((actions.size() + kActionsPerByte - 1) / kActionsPerByte, '\0');
  for (std::size_t b = 0; b < actions.size(); ++b) {
    const auto bits = static_cast<unsigned>(actions[b]) << (2 * (b % kActionsPerByte));
    char& byte = bytes[b / kActionsPerByte];
    byte = static_cast<char>(static_cast<unsigned char>(byte) | bits);
  }
  return bytes;
}

// Requires: enough bytes.
std::vector<MemoryAction> unpacked(const std::string& bytes, std::size_t blocks) {
  std::vector<MemoryAction> actions(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto byte = static_cast<unsigned char>(bytes[b / kActionsPerByte]);
    actions[b] = static_cast<MemoryAction>(byte >> (2 * (b % kActionsPerByte)) & 3u);
  }
  return actions;
}

Result<MemoryPoint> point_of(const pb::MemoryPoint& message, std::size_t blocks) {
  if (message.actions().size() != (blocks + kActionsPerByte - 1) / kActionsPerByte)
    return wrong_field("memory.actions", "2 bits for each of " + std::to_string(blocks) +
                                             " blocks, found " +
                                             std::to_string(message.actions().size()) + " bytes");
  MemoryPoint point;
  point.peak_bytes = message.peak_bytes();
  point.added_us = message.added_us();
  point.actions = unpacked(message.actions(), blocks);
  return point;
}

Result<MemoryModel> model_of(const pb::MemoryModel& message, std::size_t blocks) {
  MemoryModel model;
  model.base_bytes = message.base_bytes();
  model.step_us = message.step_us();
  model.samples = message.samples();
  model.kept_bytes.assign(message.kept_bytes().begin(), message.kept_bytes().end());
  for (const pb::MemoryPoint& part : message.points()) {
    Result<MemoryPoint> point = point_of(part, blocks);
    if (!point.ok()) return point.status();
    model.front.push_back(std::move(*point));
  }
  return model;
}

void set_model(pb::MemoryModel& message, const MemoryModel& model) {
  message.set_base_bytes(model.base_bytes);
  message.set_step_us(model.step_us);
  message.set_samples(model.samples);
  message.mutable_kept_bytes()->Assign(model.kept_bytes.begin(), model.kept_bytes.end());
  for (const MemoryPoint& point : model.front) {
    pb::MemoryPoint& part = *message.add_points();
    part.set_peak_bytes(point.peak_bytes);
    part.set_added_us(point.added_us);
    part.set_actions(packed(point.actions));
  }
}

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

constexpr std::uint64_t kMaxBatch = std::uint64_t{1} << 31;  // as SamplePlan

RoundFacts facts_of(const pb::RoundFacts& message) {
  RoundFacts facts;
  facts.round = RoundId(message.round());
  facts.step = StepId(message.step());
  facts.loss = message.loss();
  facts.gradient_norm = message.gradient_norm();
  facts.own_seconds_median = message.own_seconds_median();
  facts.wall_seconds_median = message.wall_seconds_median();
  facts.nonfinite_ranks = message.nonfinite_ranks();
  facts.plan_applied = message.plan_applied();
  return facts;
}

void set_facts(pb::RoundFacts& message, const RoundFacts& facts) {
  message.set_round(facts.round.value());
  message.set_step(facts.step.value());
  message.set_loss(facts.loss);
  message.set_gradient_norm(facts.gradient_norm);
  message.set_own_seconds_median(facts.own_seconds_median);
  message.set_wall_seconds_median(facts.wall_seconds_median);
  message.set_nonfinite_ranks(facts.nonfinite_ranks);
  message.set_plan_applied(facts.plan_applied);
}

Result<Capabilities> capabilities_of(const pb::Capabilities& message) {
  if (message.precisions() > 255 || message.actions() > 255)
    return wrong_field("capabilities", "8 bits each");
  Capabilities value;
  value.precisions = static_cast<std::uint8_t>(message.precisions());
  value.actions = static_cast<std::uint8_t>(message.actions());
  value.shares = message.shares();
  value.rollback = message.rollback();
  value.accumulation = message.accumulation();
  return value;
}

}  // namespace

pb::MemoryFacts to_proto(const MemoryFacts& value) {
  pb::MemoryFacts message;
  for (const MemoryModel& model : value.models) set_model(*message.add_models(), model);
  message.mutable_model_of_rank()->Assign(value.model_of_rank.begin(), value.model_of_rank.end());
  message.mutable_limit_bytes()->Assign(value.limit_bytes.begin(), value.limit_bytes.end());
  return message;
}

Result<MemoryFacts> from_proto(const pb::MemoryFacts& message, const JobFacts& job) {
  MemoryFacts facts;
  for (const pb::MemoryModel& part : message.models()) {
    Result<MemoryModel> model = model_of(part, job.blocks.size());
    if (!model.ok()) return model.status();
    facts.models.push_back(std::move(*model));
  }
  facts.model_of_rank.assign(message.model_of_rank().begin(), message.model_of_rank().end());
  facts.limit_bytes.assign(message.limit_bytes().begin(), message.limit_bytes().end());
  const Status status =
      validate(facts, static_cast<std::size_t>(job.world_size), job.blocks.size());
  if (!status.ok()) return data_loss("message: " + status.message());
  return facts;
}

pb::PrecisionFacts to_proto(const PrecisionFacts& value) {
  pb::PrecisionFacts message;
  for (const BlockFormats& block : value.blocks) {
    for (const std::int64_t us : block.step_us) message.add_step_us(us);
  }
  message.set_emulated(value.emulated);
  return message;
}

Result<PrecisionFacts> from_proto(const pb::PrecisionFacts& message, const JobFacts& job) {
  const auto times = static_cast<std::size_t>(message.step_us_size());
  if (times != 0 && times != kPrecisions * job.blocks.size())
    return wrong_field("precision.step_us", "4 times for each of " +
                                                std::to_string(job.blocks.size()) +
                                                " blocks or none, found " + std::to_string(times));
  if (message.emulated() >= 1u << kPrecisions) return wrong_field("precision.emulated", "4 bits");
  PrecisionFacts facts;
  facts.blocks.resize(times / kPrecisions);
  for (std::size_t i = 0; i < times; ++i) {
    facts.blocks[i / kPrecisions].step_us[i % kPrecisions] = message.step_us(static_cast<int>(i));
  }
  facts.emulated = static_cast<PrecisionSet>(message.emulated());
  const Status status = validate(facts, job.blocks.size());
  if (!status.ok()) return data_loss("message: " + status.message());
  return facts;
}

pb::JobFacts to_proto(const JobFacts& value) {
  pb::JobFacts message;
  message.set_name(value.name);
  message.set_incarnation(value.incarnation);
  message.set_world_size(value.world_size);
  for (const NodeId node : value.node_of_rank) message.add_node_of_rank(node.value());
  for (const std::string& block : value.blocks) message.add_blocks(block);
  message.set_global_batch(value.global_batch);
  message.set_micro_batch(value.micro_batch);
  pb::Capabilities& capabilities = *message.mutable_capabilities();
  capabilities.set_precisions(value.capabilities.precisions);
  capabilities.set_actions(value.capabilities.actions);
  capabilities.set_shares(value.capabilities.shares);
  capabilities.set_rollback(value.capabilities.rollback);
  capabilities.set_accumulation(value.capabilities.accumulation);
  if (value.memory != MemoryFacts{}) *message.mutable_memory() = to_proto(value.memory);
  if (value.precision != PrecisionFacts{}) {
    *message.mutable_precision() = to_proto(value.precision);
  }
  return message;
}

Result<JobFacts> from_proto(const pb::JobFacts& message) {
  if (message.world_size() < 1 || message.world_size() > kMaxRanks)
    return wrong_field("job.world_size", "1 to " + std::to_string(kMaxRanks));
  const int nodes = message.node_of_rank_size();
  if (nodes != 0 && nodes != message.world_size())
    return wrong_field("job.node_of_rank", "one node a rank, or none");
  JobFacts job;
  job.name = message.name();
  job.incarnation = message.incarnation();
  job.world_size = message.world_size();
  for (const std::int32_t node : message.node_of_rank()) job.node_of_rank.emplace_back(node);
  job.blocks.assign(message.blocks().begin(), message.blocks().end());
  if (message.global_batch() > kMaxBatch)
    return wrong_field("job.global_batch", "at most 2147483648 samples");
  job.global_batch = message.global_batch();
  if (message.micro_batch() > kMaxBatch)
    return wrong_field("job.micro_batch", "at most 2147483648 samples");
  job.micro_batch = message.micro_batch();
  Result<Capabilities> capabilities = capabilities_of(message.capabilities());
  if (!capabilities.ok()) return capabilities.status();
  job.capabilities = *capabilities;
  Result<MemoryFacts> memory = from_proto(message.memory(), job);
  if (!memory.ok()) return memory.status();
  job.memory = std::move(*memory);
  Result<PrecisionFacts> precision = from_proto(message.precision(), job);
  if (!precision.ok()) return precision.status();
  job.precision = std::move(*precision);
  return job;
}

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

pb::Reason to_proto(const Reason& value) {
  pb::Reason message;
  message.set_policy(static_cast<std::uint32_t>(value.policy));
  message.set_code(static_cast<std::uint32_t>(value.code));
  message.set_outcome(static_cast<std::uint32_t>(value.outcome));
  message.set_round(value.round.value());
  message.set_rank(value.rank.value());
  message.set_block(value.block);
  message.set_text(value.text);
  return message;
}

Result<Reason> from_proto(const pb::Reason& message) {
  if (message.policy() > 255 || message.outcome() > 255 || message.code() > 65535)
    return wrong_field("reason", "small numbers for policy, outcome and code");
  Reason reason;
  reason.policy = static_cast<PolicyKind>(message.policy());
  reason.code = static_cast<ReasonCode>(message.code());
  reason.outcome = static_cast<Outcome>(message.outcome());
  reason.round = RoundId(message.round());
  reason.rank = RankId(message.rank());
  reason.block = message.block();
  reason.text = message.text();
  return reason;
}

pb::Decision to_proto(const Decision& value) {
  pb::Decision message;
  if (value.plan) message.set_plan(serialize(*value.plan));
  for (const Reason& reason : value.reasons) *message.add_reasons() = to_proto(reason);
  return message;
}

Result<Decision> from_proto(const pb::Decision& message) {
  Decision decision;
  if (message.has_plan()) {
    Result<Plan> plan = parse_plan(message.plan());
    if (!plan.ok()) return plan.status();
    decision.plan = std::move(*plan);
  }
  for (const pb::Reason& part : message.reasons()) {
    Result<Reason> reason = from_proto(part);
    if (!reason.ok()) return reason.status();
    decision.reasons.push_back(std::move(*reason));
  }
  return decision;
}

pb::ControlState to_proto(const ControlState& value) {
  pb::ControlState message;
  message.set_plan(serialize(value.plan));
  for (const RoundFacts& facts : value.history.rounds()) set_facts(*message.add_history(), facts);
  for (const NamedPolicyState& named : value.policies) {
    pb::PolicyState& part = *message.add_policies();
    part.set_policy(named.policy);
    part.set_state(named.state.bytes());
  }
  return message;
}

Result<ControlState> from_proto(const pb::ControlState& message) {
  Result<Plan> plan = parse_plan(message.plan());
  if (!plan.ok()) return plan.status();
  ControlState state;
  state.plan = std::move(*plan);
  for (const pb::RoundFacts& facts : message.history()) state.history.add(facts_of(facts));
  for (const pb::PolicyState& part : message.policies()) {
    state.policies.push_back({part.policy(), PolicyState::from_bytes(part.state())});
  }
  return state;
}

}  // namespace cox::wire
