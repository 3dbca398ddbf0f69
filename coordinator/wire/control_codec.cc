#include "coordinator/wire/control_codec.h"

#include <algorithm>

#include "coordinator/core/bytes.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/text.h"
#include "coordinator/wire/bit_packing.h"

namespace cox::wire {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;  // the limit of a configuration file
// No node runs more ranks. A larger world must list the node of each rank, so a few bytes cannot
// make a reader allocate memory for a million ranks.
constexpr std::int32_t kMostRanksOfNode = 1 << 16;

// Returns the error for well-formed bytes with an impossible field.
Status wrong_field(std::string_view field, std::string_view expected) {
  return data_loss("message: ", field, ": expected ", expected);
}

Status check(const JobFacts& job) {
  constexpr std::uint64_t kMaxBatch = std::uint64_t{1} << 31;  // the limit of SamplePlan
  if (job.world_size < 1 || job.world_size > kMaxRanks)
    return wrong_field("job.world_size", concat("1 to ", kMaxRanks));
  if (job.node_of_rank.empty() && job.world_size > kMostRanksOfNode)
    return wrong_field("job.node_of_rank",
                       concat("one node a rank in a world above ", kMostRanksOfNode));
  const auto ranks = static_cast<std::size_t>(job.world_size);
  if (!job.node_of_rank.empty() && job.node_of_rank.size() != ranks)
    return wrong_field("job.node_of_rank", "one node a rank, or none");
  if (std::max(job.global_batch, job.micro_batch) > kMaxBatch)
    return wrong_field("job.global_batch, job.micro_batch", "at most 2147483648 samples");
  if ((job.capabilities.actions & ~kEveryAction) != 0)
    return wrong_field("job.capabilities.actions", "bits 0 to 10");
  Status facts = validate(job.memory, ranks, job.blocks.size());
  if (facts.ok()) facts = validate(job.precision, job.blocks.size());
  return facts.ok() ? facts : data_loss("message: ", facts.message());
}

Status check(const JournalRound& round) {
  for (const RankSignal& report : round.signals.reports) {
    if (report.fragment.size > sizeof(Fragment::payload))
      return wrong_field("signal.fragment", "at most 60 bytes");
  }
  return ok_status();
}

// state_of() relies on ascending policies.
bool is_ascending(const std::vector<NamedPolicyState>& policies) {
  const auto not_ascending = [](const auto& a, const auto& b) { return a.policy >= b.policy; };
  return std::ranges::adjacent_find(policies, not_ascending) == policies.end();
}

// Refitting a plan relies on profiles that cover all blocks, and on ranks whose profiles exist.
Status check(const ControlState& state) {
  if (Status shape = check_shape(state.plan); !shape.ok())
    return data_loss("message: ", shape.message());
  const std::size_t profiles = state.plan.profiles.size();
  const bool has_all = std::ranges::all_of(
      state.plan.rank_profile, [&](ProfileId profile) { return profile.value() < profiles; });
  if (!has_all) return wrong_field("state.plan.rank_profile", "profiles of the plan");
  if (!is_ascending(state.policies))
    return wrong_field("state.policies", "names in ascending order, each once");
  return ok_status();
}

template <class Value>
std::string serialized(const Value& value) {
  ByteWriter out;
  write_message(out, value);
  return std::string(out.text());
}

template <class Value>
Status parse(std::string_view bytes, Value& value) {
  if (bytes.size() > kMaxMessageBytes)
    return resource_exhausted("message: expected at most ", kMaxMessageBytes, " bytes, found ",
                              bytes.size());
  if (read_message(bytes, value)) return ok_status();
  return data_loss("message: its bytes are damaged, of another kind, or more parts than fit");
}

}  // namespace

std::string packed_actions(std::span<const MemoryAction> actions) {
  const bool has_level =
      std::ranges::any_of(actions, [](MemoryAction a) { return level_of(a) > 0; });
  const unsigned width = has_level ? 4 : 2;
  ByteWriter out;
  out.varint(actions.size());
  out.u8(static_cast<std::uint8_t>(width));
  write_bits(out, width, actions.size(),
             [&](std::size_t b) { return static_cast<unsigned>(actions[b]); });
  return std::string(out.text());
}

bool unpack_actions(std::string_view bytes, std::vector<MemoryAction>& actions) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  const std::uint64_t count = in.varint();
  const unsigned width = in.u8();
  if (count > kMaxBlocks || (width != 2 && width != 4)) return false;
  actions.resize(static_cast<std::size_t>(count));
  read_bits(in, width, actions.size(), [&](std::size_t b, std::uint64_t bits) {
    if (bits > static_cast<std::uint64_t>(kLastAction)) return in.fail();
    actions[b] = static_cast<MemoryAction>(bits);
  });
  return in.done();
}

std::string serialize(const JournalStart& value) {
  return serialized(value);
}

std::string serialize(const StepSignals& signals, const Decision& decision) {
  return serialized(RoundParts<const StepSignals, const Decision>{{signals, {}}, {decision, {}}});
}

std::string serialize(const ControlState& value) {
  return serialized(value);
}

Result<JournalStart> parse_journal_start(std::string_view bytes) {
  JournalStart start;
  Status status = parse(bytes, start);
  if (status.ok() && start.config.size() > kMaxConfigBytes)
    status = wrong_field("config", "at most " + std::to_string(kMaxConfigBytes) + " bytes");
  if (status.ok()) status = check(start.state);
  if (status.ok()) status = check(start.job);
  if (!status.ok()) return status;
  return start;
}

Result<JournalRound> parse_journal_round(std::string_view bytes, const JobSize& size) {
  JournalRound round;
  const RoundParts<StepSignals, Decision> parts{{round.signals, size}, {round.decision, size}};
  Status status = parse(bytes, parts);
  if (status.ok()) status = check(round);
  if (!status.ok()) return status;
  return round;
}

Result<ControlState> parse_control_state(std::string_view bytes) {
  ControlState state;
  Status status = parse(bytes, state);
  if (status.ok()) status = check(state);
  if (!status.ok()) return status;
  return state;
}

}  // namespace cox::wire
