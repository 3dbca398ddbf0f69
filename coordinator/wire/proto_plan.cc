#include <algorithm>
#include <limits>
#include <string>

#include "coordinator/wire/proto_convert.h"

namespace cox::wire {
namespace {

template <class Knob>
std::string one_byte_each(const std::vector<Knob>& knobs) {
  std::string bytes;
  bytes.reserve(knobs.size());
  for (const Knob knob : knobs) bytes.push_back(static_cast<char>(knob));
  return bytes;
}

// False when a byte is no value of the enum. Both enums take two bits.
template <class Knob>
bool read_knobs(std::string_view bytes, std::vector<Knob>& into) {
  if (bytes.size() > kMaxBlocks) return false;
  into.reserve(bytes.size());
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    if (value > 3) return false;
    into.push_back(static_cast<Knob>(value));
  }
  return true;
}

ScalerRules scaler_of(const pb::ScalerRules& message) {
  ScalerRules rules;
  rules.initial_scale = message.initial_scale();
  rules.growth_factor = message.growth_factor();
  rules.backoff_factor = message.backoff_factor();
  rules.growth_interval = message.growth_interval();
  rules.min_scale = message.min_scale();
  rules.max_scale = message.max_scale();
  rules.hysteresis = std::max(1u, message.hysteresis());
  rules.headroom_bits = message.headroom_bits();
  return rules;
}

void set_scaler(pb::ScalerRules& message, const ScalerRules& rules) {
  message.set_initial_scale(rules.initial_scale);
  message.set_growth_factor(rules.growth_factor);
  message.set_backoff_factor(rules.backoff_factor);
  message.set_growth_interval(rules.growth_interval);
  message.set_min_scale(rules.min_scale);
  message.set_max_scale(rules.max_scale);
  message.set_hysteresis(rules.hysteresis);
  message.set_headroom_bits(rules.headroom_bits);
}

Status read_ranks(const pb::Plan& message, Plan& plan) {
  if (message.rank_class_size() > kMaxRanks || message.shares_size() > kMaxRanks)
    return wrong_field("plan ranks", "at most " + std::to_string(kMaxRanks));
  plan.rank_class.reserve(static_cast<std::size_t>(message.rank_class_size()));
  for (const std::uint32_t id : message.rank_class()) {
    if (id > std::numeric_limits<ClassId::rep>::max())
      return wrong_field("plan.rank_class", "classes below 65536");
    plan.rank_class.emplace_back(static_cast<ClassId::rep>(id));
  }
  plan.shares.assign(message.shares().begin(), message.shares().end());
  return ok_status();
}

}  // namespace

pb::Plan to_proto(const Plan& value) {
  pb::Plan message;
  message.set_incarnation(value.id.incarnation);
  message.set_number(value.id.number);
  message.set_earliest_round(value.earliest_round.value());
  if (value.activated_round) message.set_activated_round(value.activated_round->value());
  message.set_precision(one_byte_each(value.precision));
  for (const auto& actions : value.classes) message.add_classes(one_byte_each(actions));
  for (const ClassId id : value.rank_class) message.add_rank_class(id.value());
  message.mutable_shares()->Assign(value.shares.begin(), value.shares.end());
  message.set_step_samples(value.step_samples);
  message.set_cadence_steps(value.cadence_steps);
  set_scaler(*message.mutable_scaler(), value.scaler);
  message.set_hold_until(value.hold_until.value());
  message.mutable_rollback()->set_ticket(value.rollback.ticket);
  message.mutable_rollback()->set_before_round(value.rollback.before_round.value());
  return message;
}

Result<Plan> from_proto(const pb::Plan& message) {
  Plan plan;
  plan.id = {message.incarnation(), message.number()};
  plan.earliest_round = RoundId(message.earliest_round());
  if (message.has_activated_round()) plan.activated_round = RoundId(message.activated_round());
  if (!read_knobs(message.precision(), plan.precision))
    return wrong_field("plan.precision", "at most 1024 bytes from 0 to 3");
  for (const std::string& actions : message.classes()) {
    if (!read_knobs(actions, plan.classes.emplace_back()))
      return wrong_field("plan.classes", "at most 1024 bytes from 0 to 3 each");
  }
  if (Status status = read_ranks(message, plan); !status.ok()) return status;
  plan.step_samples = message.step_samples();
  plan.cadence_steps = message.cadence_steps();
  plan.scaler = scaler_of(message.scaler());
  plan.hold_until = RoundId(message.hold_until());
  plan.rollback = {message.rollback().ticket(), RoundId(message.rollback().before_round())};
  return plan;
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
  if (value.plan) *message.mutable_plan() = to_proto(*value.plan);
  for (const Reason& reason : value.reasons) *message.add_reasons() = to_proto(reason);
  return message;
}

Result<Decision> from_proto(const pb::Decision& message) {
  Decision decision;
  if (message.has_plan()) {
    Result<Plan> plan = from_proto(message.plan());
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

}  // namespace cox::wire
