#include "coordinator/wire/control_codec.h"

#include <algorithm>
#include <array>

#include "coordinator/core/bytes.h"
#include "coordinator/wire/proto_convert.h"

namespace cox::wire {
namespace {

// At most `most` occurrences of a length-delimited field in one message; `inside` applies to each.
struct FieldLimit {
  std::uint32_t field = 0;
  std::size_t most = 0;
  std::span<const FieldLimit> inside = {};
};

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kFixed32 = 5 };

Status no_message() {
  return data_loss("message: expected tagged fields, found other bytes");
}

// Steps over the value of a field; a delimited one is returned.
std::span<const std::byte> skip(ByteReader& in, std::uint32_t type) {
  switch (type) {
    case kVarint:
      in.varint();
      return {};
    case kFixed64:
      in.take(8);
      return {};
    case kFixed32:
      in.take(4);
      return {};
    case kDelimited:
      return in.take(in.varint());
    default:
      in.fail();
      return {};
  }
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Counts the parts of a serialised message before anything is allocated for them: an empty part
// costs two bytes on the wire and hundreds in memory. Walks tags and lengths only. data_loss when
// the bytes are no fields, resource_exhausted when a limit is exceeded.
Status check_limits(std::string_view message, std::span<const FieldLimit> limits) {
  ByteReader in(std::as_bytes(std::span(message.data(), message.size())));
  std::vector<std::size_t> seen(limits.size(), 0);
  while (!in.at_end()) {
    const std::uint64_t tag = in.varint();
    const auto body = skip(in, static_cast<std::uint32_t>(tag & 7u));
    if (in.failed()) return no_message();
    const auto limit = std::find_if(limits.begin(), limits.end(),
                                    [&](const FieldLimit& l) { return l.field == tag >> 3; });
    if (limit == limits.end() || (tag & 7u) != kDelimited) continue;
    if (++seen[static_cast<std::size_t>(limit - limits.begin())] > limit->most)
      return resource_exhausted("message: expected at most " + std::to_string(limit->most) +
                                " parts of field " + std::to_string(limit->field) + ", found more");
    if (limit->inside.empty()) continue;
    if (Status status = check_limits(as_text(body), limit->inside); !status.ok()) return status;
  }
  return in.failed() ? no_message() : ok_status();
}

constexpr std::size_t kMaxPolicies = 256;

// The fields whose parts cost memory, by their numbers in control.proto.
constexpr std::array kModelLimits = {FieldLimit{1, kMaxFrontPoints}};
constexpr std::array kMemoryLimits = {FieldLimit{1, kMaxMemoryModels, kModelLimits}};
constexpr std::array kJobLimits = {FieldLimit{5, kMaxBlocks}, FieldLimit{8, 1, kMemoryLimits},
                                   FieldLimit{9, 1}};
constexpr std::array kStateLimits = {FieldLimit{2, History::kCapacity}, FieldLimit{3, kMaxPolicies},
                                     FieldLimit{4, 1}};
constexpr std::array kFirstLimits = {FieldLimit{2, ParseLimits{}.reasons()}, FieldLimit{3, 1}};
constexpr std::array kStartLimits = {FieldLimit{1, 1, kJobLimits}, FieldLimit{3, 1, kStateLimits},
                                     FieldLimit{4, kMaxPolicies}, FieldLimit{5, 1, kFirstLimits}};

std::array<FieldLimit, 3> signals_limits(const ParseLimits& limits) {
  return {FieldLimit{3, limits.ranks}, FieldLimit{4, limits.faults()},
          FieldLimit{5, limits.blocks}};
}

std::array<FieldLimit, 2> decision_limits(const ParseLimits& limits) {
  return {FieldLimit{2, limits.reasons()}, FieldLimit{3, 1}};
}

// Parses bytes as `Message` once their parts were counted.
template <class Message>
Result<Message> read(std::string_view bytes, std::span<const FieldLimit> limits) {
  if (bytes.size() > kMaxMessageBytes)
    return resource_exhausted("message: expected at most " + std::to_string(kMaxMessageBytes) +
                              " bytes, found " + std::to_string(bytes.size()));
  if (Status status = check_limits(bytes, limits); !status.ok()) return status;
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return data_loss("message: its bytes are damaged or of another kind");
  return message;
}

template <class Value, class Message>
Result<Value> parse(std::string_view bytes, std::span<const FieldLimit> limits) {
  const Result<Message> message = read<Message>(bytes, limits);
  if (!message.ok()) return message.status();
  return from_proto(*message);
}

template <class Part>
Status take(Result<Part> part, Part& into) {
  if (!part.ok()) return part.status();
  into = std::move(*part);
  return ok_status();
}

}  // namespace

ParseLimits limits_of(const JobFacts& job) {
  return {static_cast<std::size_t>(job.world_size), job.blocks.size()};
}

std::string serialize(const JobFacts& value) {
  return to_proto(value).SerializeAsString();
}
std::string serialize(const Reason& value) {
  return to_proto(value).SerializeAsString();
}
std::string serialize(const StepSignals& value) {
  return to_proto(value).SerializeAsString();
}
std::string serialize(const ControlState& value) {
  return to_proto(value).SerializeAsString();
}
std::string serialize(const Decision& value) {
  return to_proto(value).SerializeAsString();
}

std::string serialize(const JournalStart& value) {
  pb::JournalStart message;
  *message.mutable_job() = to_proto(value.job);
  message.set_config(value.config);
  *message.mutable_state() = to_proto(value.state);
  for (const std::string& policy : value.policies) message.add_policies(policy);
  if (value.first) *message.mutable_first() = to_proto(*value.first);
  return message.SerializeAsString();
}

std::string serialize(const StepSignals& signals, const Decision& decision) {
  pb::JournalRound message;
  *message.mutable_signals() = to_proto(signals);
  *message.mutable_decision() = to_proto(decision);
  return message.SerializeAsString();
}

Result<JobFacts> parse_job_facts(std::string_view bytes) {
  return parse<JobFacts, pb::JobFacts>(bytes, kJobLimits);
}

Result<Reason> parse_reason(std::string_view bytes) {
  return parse<Reason, pb::Reason>(bytes, {});
}

Result<StepSignals> parse_step_signals(std::string_view bytes, const ParseLimits& limits) {
  return parse<StepSignals, pb::StepSignals>(bytes, signals_limits(limits));
}

Result<ControlState> parse_control_state(std::string_view bytes) {
  return parse<ControlState, pb::ControlState>(bytes, kStateLimits);
}

Result<Decision> parse_decision(std::string_view bytes, const ParseLimits& limits) {
  return parse<Decision, pb::Decision>(bytes, decision_limits(limits));
}

Result<JournalStart> parse_journal_start(std::string_view bytes) {
  const Result<pb::JournalStart> message = read<pb::JournalStart>(bytes, kStartLimits);
  if (!message.ok()) return message.status();
  JournalStart start;
  if (Status s = take(from_proto(message->job()), start.job); !s.ok()) return s;
  if (Status s = take(from_proto(message->state()), start.state); !s.ok()) return s;
  start.config = message->config();
  start.policies.assign(message->policies().begin(), message->policies().end());
  if (!message->has_first()) return start;
  if (Status s = take(from_proto(message->first()), start.first.emplace()); !s.ok()) return s;
  return start;
}

Result<JournalRound> parse_journal_round(std::string_view bytes, const ParseLimits& limits) {
  const auto signals = signals_limits(limits);
  const auto decision = decision_limits(limits);
  const std::array inside = {FieldLimit{1, 1, signals}, FieldLimit{2, 1, decision}};
  const Result<pb::JournalRound> message = read<pb::JournalRound>(bytes, inside);
  if (!message.ok()) return message.status();
  JournalRound round;
  if (Status s = take(from_proto(message->signals()), round.signals); !s.ok()) return s;
  if (Status s = take(from_proto(message->decision()), round.decision); !s.ok()) return s;
  return round;
}

}  // namespace cox::wire
