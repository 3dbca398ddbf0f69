#include <string>

#include "coordinator/wire/proto_convert.h"

namespace cox::wire {
namespace {

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
  value.cadence = message.cadence();
  value.rollback = message.rollback();
  value.accumulation = message.accumulation();
  return value;
}

}  // namespace

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
  capabilities.set_cadence(value.capabilities.cadence);
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

pb::ControlState to_proto(const ControlState& value) {
  pb::ControlState message;
  *message.mutable_plan() = to_proto(value.plan);
  for (const RoundFacts& facts : value.history.rounds()) set_facts(*message.add_history(), facts);
  for (const NamedPolicyState& named : value.policies) {
    pb::PolicyState& part = *message.add_policies();
    part.set_policy(named.policy);
    part.set_state(named.state.bytes());
  }
  return message;
}

Result<ControlState> from_proto(const pb::ControlState& message) {
  Result<Plan> plan = from_proto(message.plan());
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
