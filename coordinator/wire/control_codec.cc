#include "coordinator/wire/control_codec.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <span>
#include <tuple>

#include "coordinator/core/bytes.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/text.h"
#include "coordinator/wire/bit_packing.h"
#include "coordinator/wire/control.pb.h"
#include "coordinator/wire/plan_codec.h"

namespace cox::wire {
namespace {

constexpr std::size_t kMaxPolicies = 256;
constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;  // as of a file
constexpr JobSize kLargestJob;
// No machine runs as many ranks. A larger world lists the node of each rank, so that a few bytes
// cannot make a reader allocate for a million.
constexpr std::int32_t kMostRanksOfNode = 1 << 16;

// A vector of at most so many elements.
template <class Vector>
struct AtMost {
  std::size_t most;
  Vector& values;
};
template <class Vector>  // clang before 17 deduces nothing for aggregates by itself
AtMost(std::size_t, Vector&)->AtMost<Vector>;

template <class Vector>
void write(ByteWriter& out, const AtMost<Vector>& field) {
  state_codec::write(out, field.values);
}

template <class Vector>
void read(ByteReader& in, AtMost<Vector>& field) {
  ByteReader ahead = in;
  ahead.varint() > field.most ? in.fail() : state_codec::read(in, field.values);
}

// A fixed array of bytes without the zeros at its end.
template <class Array>
struct Trimmed {
  Array& bytes;
};
template <class Array>
Trimmed(Array&) -> Trimmed<Array>;

template <class Array>
void write(ByteWriter& out, const Trimmed<Array>& field) {
  std::size_t size = field.bytes.size();
  while (size > 0 && field.bytes[size - 1] == std::byte{0}) --size;
  out.varint(size);
  out.append(std::span(field.bytes).first(size));
}

template <class Array>
void read(ByteReader& in, Trimmed<Array>& field) {
  const auto bytes = in.take(in.varint());
  if (bytes.size() > field.bytes.size()) return in.fail();
  std::copy(bytes.begin(), bytes.end(), field.bytes.begin());
}

// What was added to a signal, as the Trimmed bytes that were reserved in it before: files of either
// kind read the other's.
template <class... Floats>
struct Added {
  std::tuple<Floats&...> floats;
  using Bytes = std::array<std::byte, sizeof...(Floats) * sizeof(float)>;

  explicit Added(Floats&... fields) : floats(fields...) {}
};

template <class... Floats>
void write(ByteWriter& out, const Added<Floats...>& field) {
  typename Added<Floats...>::Bytes bytes{};
  std::byte* to = bytes.data();
  const auto put = [&to](float value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  std::apply([&](auto&... values) { (put(values), ...); }, field.floats);
  write(out, Trimmed{bytes});
}

template <class... Floats>
void read(ByteReader& in, Added<Floats...>& field) {
  typename Added<Floats...>::Bytes bytes{};
  Trimmed trimmed{bytes};
  read(in, trimmed);
  const std::byte* from = bytes.data();
  const auto take = [&from](float& value) {
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
  };
  std::apply([&](auto&... values) { (take(values), ...); }, field.floats);
}

// Any value of an enum's type: codes of user policies have no names.
template <class Enum>
struct Number {
  Enum& value;
};
template <class Enum>
Number(Enum&) -> Number<Enum>;

template <class Enum>
void write(ByteWriter& out, const Number<Enum>& field) {
  out.varint(static_cast<std::uint64_t>(field.value));
}

template <class Enum>
void read(ByteReader& in, Number<Enum>& field) {
  field.value = static_cast<Enum>(state_codec::read_integer<std::underlying_type_t<Enum>>(in));
}

// One action a block: in two bits, or in four where one is a level of recompute.
template <class Vector>
struct Actions {
  Vector& values;
};
template <class Vector>
Actions(Vector&) -> Actions<Vector>;

template <class Vector>
void write(ByteWriter& out, const Actions<Vector>& field) {
  const bool has_level =
      std::ranges::any_of(field.values, [](MemoryAction a) { return level_of(a) > 0; });
  const unsigned width = has_level ? 4 : 2;
  out.varint(field.values.size());
  out.u8(static_cast<std::uint8_t>(width));
  write_bits(out, width, field.values.size(),
             [&](std::size_t b) { return static_cast<unsigned>(field.values[b]); });
}

template <class Vector>
void read(ByteReader& in, Actions<Vector>& field) {
  const std::uint64_t count = in.varint();
  const unsigned width = in.u8();
  if (count > kMaxBlocks || (width != 2 && width != 4)) return in.fail();
  field.values.resize(static_cast<std::size_t>(count));
  read_bits(in, width, field.values.size(), [&](std::size_t b, std::uint64_t bits) {
    if (bits > static_cast<std::uint64_t>(kLastAction)) return in.fail();
    field.values[b] = static_cast<MemoryAction>(bits);
  });
}

}  // namespace
}  // namespace cox::wire

// The fields of core's values. The lists stand in their namespace, where the codec finds them.
namespace cox {

template <class T, class Value>
concept Is = std::same_as<std::remove_const_t<T>, Value>;

using wire::Actions;
using wire::Added;
using wire::AtMost;
using wire::JobSize;
using wire::kLargestJob;
using wire::Number;
using wire::Trimmed;

void list_fields(Is<Capabilities> auto& it, auto&& visit) {
  visit(it.precisions, it.actions, it.shares, it.accumulation, it.rollback);
}

void list_fields(Is<MemoryPoint> auto& it, auto&& visit) {
  visit(it.peak_bytes, it.added_us, Actions{it.actions});
}

void list_fields(Is<MemoryModel> auto& it, auto&& visit) {
  visit(AtMost{kMaxFrontPoints, it.front}, it.base_bytes, it.step_us,
        AtMost{kMaxBlocks, it.kept_bytes}, it.samples);
}

void list_fields(Is<MemoryFacts> auto& it, auto&& visit) {
  visit(AtMost{kMaxMemoryModels, it.models}, AtMost{kLargestJob.ranks, it.model_of_rank},
        AtMost{kLargestJob.ranks, it.limit_bytes});
}

void list_fields(Is<BlockFormats> auto& it, auto&& visit) {
  visit(it.step_us);
}

void list_fields(Is<PrecisionFacts> auto& it, auto&& visit) {
  visit(AtMost{kMaxBlocks, it.blocks}, it.emulated);
}

void list_fields(Is<JobFacts> auto& it, auto&& visit) {
  visit(it.name, it.incarnation, it.world_size, AtMost{kLargestJob.ranks, it.node_of_rank},
        AtMost{kMaxBlocks, it.blocks}, it.global_batch, it.micro_batch, it.capabilities, it.memory,
        it.precision);
}

// Leaves out magic and version, which are the same in every signal that came so far.
void list_fields(Is<RankSignal> auto& it, auto&& visit) {
  visit(it.flags, it.rank, it.incarnation, it.round, it.step, it.plan_held, it.plan_applied,
        it.loss, it.weight, it.gradient_norm, it.wall_seconds, it.phase_seconds, it.rounds,
        it.samples, it.nonfinite_values, it.control_errors, it.tokens, it.memory_used_bytes,
        it.memory_peak_bytes, it.memory_limit_bytes, Number{it.fragment.kind}, it.fragment.size,
        Trimmed{it.fragment.payload}, it.loss_scale, it.reduction_seconds,
        it.reduction_exposed_seconds,
        Added{it.flops, it.waiting_seconds, it.recompute_seconds, it.save_seconds}, it.checksum);
}

void list_fields(Is<FaultyReport> auto& it, auto&& visit) {
  visit(it.rank, Number{it.fault}, it.round);
}

void list_fields(Is<Magnitude> auto& it, auto&& visit) {
  visit(it.value, it.rank);
}

void list_fields(Is<BlockEvidence> auto& it, auto&& visit) {
  visit(it.overflow_forward, it.overflow_backward, it.rank_of_overflow, it.sampled, it.underflow,
        it.saturated, it.activation, it.gradient, it.noise_sum, it.noise_count, it.underflow_ratio,
        it.saturated_ratio, it.signal_over_noise);
}

void list_fields(Is<StepSignals> auto& it, auto&& visit, const JobSize& most = kLargestJob) {
  visit(it.round, it.now.seconds, AtMost{most.ranks, it.reports}, AtMost{most.faults(), it.faults},
        AtMost{most.blocks, it.evidence});
}

// Leaves out the summary, which follows from the signals.
void list_fields(Is<Decision> auto& it, auto&& visit, const JobSize& most = kLargestJob) {
  visit(it.plan, AtMost{most.reasons(), it.reasons});
}

void list_fields(Is<RoundFacts> auto& it, auto&& visit) {
  visit(it.round, it.step, it.loss, it.gradient_norm, it.own_seconds_median, it.wall_seconds_median,
        it.nonfinite_ranks, it.plan_applied);
}

void list_fields(Is<NamedPolicyState> auto& it, auto&& visit) {
  visit(it.policy, it.state);
}

static void write(ByteWriter& out, const Plan& plan) {
  state_codec::write(out, wire::serialize(plan));
}

static void read(ByteReader& in, Plan& plan) {
  std::string bytes;
  state_codec::read(in, bytes);
  Result<Plan> read = wire::parse_plan(bytes);
  if (!read.ok()) return in.fail();
  plan = *std::move(read);
}

static void write(ByteWriter& out, const PolicyState& state) {
  state_codec::write(out, state.bytes());
}

static void read(ByteReader& in, PolicyState& state) {
  std::string bytes;
  state_codec::read(in, bytes);
  state = PolicyState::from_bytes(std::move(bytes));
}

static void write(ByteWriter& out, const History& history) {
  state_codec::write(out, std::vector(history.rounds().begin(), history.rounds().end()));
}

static void read(ByteReader& in, History& history) {
  std::vector<RoundFacts> rounds;
  AtMost field{History::kCapacity, rounds};
  read(in, field);
  for (const RoundFacts& facts : rounds) history.add(facts);
}

}  // namespace cox

namespace cox::wire {

namespace {

namespace pb = coxswain::v1;

// A field that cannot be, although its bytes are in order.
Status wrong_field(std::string_view field, std::string_view expected) {
  return data_loss("message: ", field, ": expected ", expected);
}

Status check(const JobFacts& job) {
  constexpr std::uint64_t kMaxBatch = std::uint64_t{1} << 31;  // as SamplePlan
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

// As state_of() relies on.
bool is_ascending(const std::vector<NamedPolicyState>& policies) {
  const auto not_ascending = [](const auto& a, const auto& b) { return a.policy >= b.policy; };
  return std::ranges::adjacent_find(policies, not_ascending) == policies.end();
}

// A part of a message: these fields, one after another.
template <class... Fields>
std::string part_of(const Fields&... fields) {
  ByteWriter out;
  state_codec::FieldWriter{out}(fields...);
  return std::string(out.text());
}

// `limits` are those that the list of the value's fields takes, if it takes any.
template <class Value, class... Limits>
bool read_part(std::string_view bytes, Value& value, const Limits&... limits) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  if constexpr (sizeof...(limits) > 0) {
    list_fields(value, state_codec::FieldReader{in}, limits...);
  } else {
    state_codec::FieldReader{in}(value);
  }
  return in.done();
}

Status damaged() {
  return data_loss("message: its bytes are damaged, of another kind, or more parts than fit");
}

template <class Message>
Result<Message> parse_message(std::string_view bytes) {
  if (bytes.size() > kMaxMessageBytes)
    return resource_exhausted("message: expected at most ", kMaxMessageBytes, " bytes, found ",
                              bytes.size());
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return damaged();
  return message;
}

}  // namespace

std::string serialize(const JournalStart& value) {
  pb::JournalStart message;
  message.set_job(part_of(value.job));
  message.set_config(value.config);
  message.set_state(serialize(value.state));
  message.set_policies(part_of(value.policies));
  if (value.first) message.set_first(part_of(*value.first));
  return message.SerializeAsString();
}

std::string serialize(const StepSignals& signals, const Decision& decision) {
  pb::JournalRound message;
  message.set_signals(part_of(signals));
  message.set_decision(part_of(decision));
  return message.SerializeAsString();
}

std::string serialize(const ControlState& value) {
  pb::ControlState message;
  message.set_plan(serialize(value.plan));
  message.set_history(part_of(value.history));
  message.set_policies(part_of(value.policies));
  return message.SerializeAsString();
}

Result<JournalStart> parse_journal_start(std::string_view bytes) {
  const auto message = parse_message<pb::JournalStart>(bytes);
  if (!message.ok()) return message.status();
  if (message->config().size() > kMaxConfigBytes)
    return wrong_field("config", concat("at most ", kMaxConfigBytes, " bytes"));
  JournalStart start;
  start.config = message->config();
  AtMost policies{kMaxPolicies, start.policies};
  bool is_whole = read_part(message->job(), start.job) && read_part(message->policies(), policies);
  if (message->has_first()) is_whole &= read_part(message->first(), start.first.emplace());
  if (!is_whole) return damaged();
  auto state = parse_control_state(message->state());
  if (!state.ok()) return state.status();
  start.state = *std::move(state);
  if (Status fits = check(start.job); !fits.ok()) return fits;
  return start;
}

Result<JournalRound> parse_journal_round(std::string_view bytes, const JobSize& size) {
  const auto message = parse_message<pb::JournalRound>(bytes);
  if (!message.ok()) return message.status();
  JournalRound round;
  if (!read_part(message->signals(), round.signals, size) ||
      !read_part(message->decision(), round.decision, size))
    return damaged();
  if (Status fits = check(round); !fits.ok()) return fits;
  return round;
}

Result<ControlState> parse_control_state(std::string_view bytes) {
  const auto message = parse_message<pb::ControlState>(bytes);
  if (!message.ok()) return message.status();
  ControlState state;
  Result<Plan> plan = parse_plan(message->plan());
  if (!plan.ok()) return plan.status();
  state.plan = *std::move(plan);
  AtMost policies{kMaxPolicies, state.policies};
  const bool is_whole =
      read_part(message->history(), state.history) && read_part(message->policies(), policies);
  if (!is_whole) return damaged();
  if (!is_ascending(state.policies))
    return wrong_field("state.policies", "names in ascending order, each once");
  return state;
}

}  // namespace cox::wire
