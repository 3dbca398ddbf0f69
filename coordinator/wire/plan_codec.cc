#include "coordinator/wire/plan_codec.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <type_traits>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"
#include "coordinator/core/plan_fields.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/text.h"
#include "coordinator/wire/bit_packing.h"

namespace cox::wire {
namespace {

using Profiles = std::vector<ActionProfile>;

// The id of a delta's entry for blocks with changed bits; equal to the id of the precision.
constexpr std::uint8_t kBlocksEntry = 1;

// Forms of a list with one number per rank. Ranks are many and distinct numbers few, so the writer
// picks the shortest of three forms: runs of equal numbers, a pattern that repeats (rank modulo
// GPUs of a node), or all numbers in as few bits as they need.
enum class SequenceForm : std::uint8_t { runs = 1, packed = 2, repeated = 3 };

// Forms of a profile after the first.
enum class ProfileForm : std::uint8_t { packed = 0, changes = 1 };

using Values = std::span<const std::uint32_t>;

ByteWriter as_runs(Values values) {
  ByteWriter out;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i + 1;
    while (end < values.size() && values[end] == values[i]) ++end;
    out.varint(end - i);
    out.varint(values[i]);
    i = end;
  }
  return out;
}

ByteWriter as_packed(Values values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto width = static_cast<unsigned>(std::bit_width(*most - *least));
  ByteWriter out;
  out.varint(*least);
  out.u8(static_cast<std::uint8_t>(width));
  write_bits(out, width, values.size(),
             [&, least = *least](std::size_t i) { return values[i] - least; });
  return out;
}

// Returns the smallest p with values[i] == values[i - p] for all i >= p, from the longest proper
// border.
std::size_t period_of(Values values) {
  std::vector<std::uint32_t> border(values.size(), 0);
  for (std::size_t i = 1; i < values.size(); ++i) {
    std::uint32_t length = border[i - 1];
    while (length > 0 && values[i] != values[length]) length = border[length - 1];
    border[i] = values[i] == values[length] ? length + 1 : 0;
  }
  return values.size() - border.back();
}

ByteWriter as_repeated(Values values) {
  const std::size_t period = period_of(values);
  ByteWriter out;
  out.varint(period);
  for (const std::uint32_t value : values.first(period)) out.varint(value);
  return out;
}

void read_runs(ByteReader& in, std::span<std::uint32_t> out) {
  for (std::size_t i = 0; i < out.size() && !in.failed();) {
    const std::uint64_t length = in.varint();
    const auto value = state_codec::read_integer<std::uint32_t>(in);
    if (length == 0 || length > out.size() - i) return in.fail();
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i), length, value);
    i += static_cast<std::size_t>(length);
  }
}

void read_packed(ByteReader& in, std::span<std::uint32_t> out) {
  const std::uint64_t least = state_codec::read_integer<std::uint32_t>(in);
  const unsigned width = in.u8();
  if (in.failed() || width > 32) return in.fail();
  read_bits(in, width, out.size(), [&](std::size_t i, std::uint64_t more) {
    if (least + more > std::numeric_limits<std::uint32_t>::max()) return in.fail();
    out[i] = static_cast<std::uint32_t>(least + more);
  });
}

void read_repeated(ByteReader& in, std::span<std::uint32_t> out) {
  const std::uint64_t period = in.varint();
  if (period == 0 || period > out.size()) return in.fail();
  for (std::size_t i = 0; i < out.size() && !in.failed(); ++i) {
    out[i] = i < period ? state_codec::read_integer<std::uint32_t>(in)
                        : out[i - static_cast<std::size_t>(period)];
  }
}

// Appends the count, the form and the numbers. Takes time linear in the count.
void write_sequence(ByteWriter& out, Values values) {
  out.varint(values.size());
  if (values.empty()) return;
  ByteWriter best = as_runs(values);
  SequenceForm form = SequenceForm::runs;
  const auto consider = [&](SequenceForm other, ByteWriter written) {
    if (written.size() >= best.size()) return;
    best = std::move(written);
    form = other;
  };
  consider(SequenceForm::packed, as_packed(values));
  consider(SequenceForm::repeated, as_repeated(values));
  out.u8(static_cast<std::uint8_t>(form));
  out.append(best.bytes());
}

// Returns nullopt for malformed bytes or a count above `max_count`. Never allocates more than
// `max_count` numbers.
std::optional<std::vector<std::uint32_t>> read_sequence(ByteReader& in, std::size_t max_count) {
  const std::uint64_t count = in.varint();
  if (in.failed() || count > max_count) return std::nullopt;
  std::vector<std::uint32_t> values(static_cast<std::size_t>(count));
  if (values.empty()) return values;
  const auto form = static_cast<SequenceForm>(in.u8());
  if (form == SequenceForm::runs)
    read_runs(in, values);
  else if (form == SequenceForm::packed)
    read_packed(in, values);
  else if (form == SequenceForm::repeated)
    read_repeated(in, values);
  else
    in.fail();
  if (in.failed()) return std::nullopt;
  return values;
}

// A block has two bits of precision, then its action in profile 0.
constexpr unsigned kPrecisionBits = 2;

constexpr unsigned width_of(BlockBits bits) {
  return static_cast<unsigned>(bits);
}

// Returns the width of an action in the profiles after the first.
constexpr unsigned action_bits(BlockBits bits) {
  return bits == BlockBits::eight ? 4 : 2;
}

unsigned value_of(const Plan& plan, std::size_t block) {
  return static_cast<unsigned>(plan.precision[block]) |
         static_cast<unsigned>(plan.profiles[0][block]) << kPrecisionBits;
}

// Fails if no action has the number.
void set_action(ByteReader& in, MemoryAction& action, std::uint64_t number) {
  if (number > static_cast<std::uint64_t>(kLastAction)) return in.fail();
  action = static_cast<MemoryAction>(number);
}

void set_block(ByteReader& in, Plan& plan, std::size_t block, std::uint64_t value) {
  plan.precision[block] = static_cast<Precision>(value & ((1u << kPrecisionBits) - 1));
  set_action(in, plan.profiles[0][block], value >> kPrecisionBits);
}

struct Changes {
  ByteWriter list;  // each changed block: the distance from the last one, then the new bits
  std::size_t count = 0;
};

template <class At>
Changes changes(std::size_t blocks, unsigned width, const At& now, const At& before) {
  Changes out;
  std::size_t next = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const unsigned bits = now(b);
    if (bits == before(b)) continue;
    out.list.varint((b - next) << width | bits);
    next = b + 1;
    ++out.count;
  }
  return out;
}

// Reads the next change of the list and calls set(block, bits).
template <class Set>
void read_change(ByteReader& in, std::size_t blocks, unsigned width, std::size_t& next,
                 const Set& set) {
  const std::uint64_t word = in.varint();
  const std::uint64_t gap = word >> width;
  if (gap >= blocks - next) return in.fail();
  next += static_cast<std::size_t>(gap);
  set(next, word & ((1u << width) - 1));
  ++next;
}

void write_block_table(ByteWriter& out, const Plan& plan, BlockBits bits) {
  write_bits(out, width_of(bits), plan.precision.size(),
             [&](std::size_t b) { return value_of(plan, b); });
}

void read_block_table(ByteReader& in, Plan& plan, BlockBits bits) {
  read_bits(in, width_of(bits), plan.precision.size(),
            [&](std::size_t b, std::uint64_t value) { set_block(in, plan, b, value); });
}

ByteWriter changed_blocks(const Plan& plan, const Plan& base, BlockBits bits) {
  const auto values_of = [](const Plan& of) {
    return [&of](std::size_t b) { return value_of(of, b); };
  };
  return changes(plan.precision.size(), width_of(bits), values_of(plan), values_of(base)).list;
}

void read_changed_blocks(ByteReader& in, Plan& plan, BlockBits bits) {
  std::size_t next = 0;
  while (!in.failed() && !in.at_end()) {
    read_change(in, plan.precision.size(), width_of(bits), next,
                [&](std::size_t b, std::uint64_t value) { set_block(in, plan, b, value); });
  }
}

auto numbers_of(const ActionProfile& actions) {
  return [&actions](std::size_t b) { return static_cast<unsigned>(actions[b]); };
}

auto setter_of(ByteReader& in, ActionProfile& actions) {
  return
      [&in, &actions](std::size_t b, std::uint64_t number) { set_action(in, actions[b], number); };
}

void read_changed_actions(ByteReader& in, ActionProfile& actions, BlockBits bits) {
  std::size_t next = 0;
  for (std::uint64_t count = in.varint(); count > 0 && !in.failed(); --count) {
    read_change(in, actions.size(), action_bits(bits), next, setter_of(in, actions));
  }
}

// Writes the value of a field into the field's entry: a number, or the numbers of a struct one
// after another. Lists have overloads below.
template <class T>
void write_value(ByteWriter& out, const T& value, BlockBits bits) {
  if constexpr (ScalarField<T>) {
    state_codec::write_scalar(out, value);
  } else {
    message_of(value).for_each([&](auto& each) { write_value(out, each.value, bits); });
  }
}

// Precision travels with the blocks and has no entry of its own.
void write_value(ByteWriter&, const std::vector<Precision>&, BlockBits) {}

void write_value(ByteWriter& out, const std::vector<std::uint32_t>& values, BlockBits) {
  write_sequence(out, values);
}

void write_value(ByteWriter& out, const std::vector<ProfileId>& profiles, BlockBits) {
  std::vector<std::uint32_t> values;
  values.reserve(profiles.size());
  for (const ProfileId id : profiles) values.push_back(id.value());
  write_sequence(out, values);
}

// Writes the number of profiles, then all but the first profile, each in its shorter form: packed,
// or as changes against the first.
void write_value(ByteWriter& out, const Profiles& profiles, BlockBits bits) {
  out.varint(profiles.size());
  for (std::size_t p = 1; p < profiles.size(); ++p) {
    const ActionProfile& actions = profiles[p];
    ByteWriter packed;
    write_bits(packed, action_bits(bits), actions.size(), numbers_of(actions));
    const Changes changed =
        changes(actions.size(), action_bits(bits), numbers_of(actions), numbers_of(profiles[0]));
    ByteWriter listed;
    listed.varint(changed.count);
    listed.append(changed.list.bytes());
    const bool shorter = listed.size() < packed.size();
    out.u8(static_cast<std::uint8_t>(shorter ? ProfileForm::changes : ProfileForm::packed));
    out.append(shorter ? listed.bytes() : packed.bytes());
  }
}

// Reading has the facts that a reader needs beyond the bytes of an entry.
struct Reading {
  const Plan& plan;  // as read so far
  const JobSize& size;
  BlockBits bits;
};

template <class T>
void read_value(ByteReader& in, T& value, const Reading& reading) {
  if constexpr (ScalarField<T>) {
    value = state_codec::read_scalar<T>(in);
  } else {
    message_of(value).for_each([&](auto& each) { read_value(in, each.value, reading); });
  }
}

void read_value(ByteReader& in, std::vector<Precision>&, const Reading&) {
  in.fail();
}

void read_value(ByteReader& in, std::vector<std::uint32_t>& values, const Reading& reading) {
  auto read = read_sequence(in, reading.size.ranks);
  if (!read) return in.fail();
  values = std::move(*read);
}

void read_value(ByteReader& in, std::vector<ProfileId>& profiles, const Reading& reading) {
  const auto values = read_sequence(in, reading.size.ranks);
  if (!values) return in.fail();
  profiles.clear();
  profiles.reserve(values->size());
  for (const std::uint32_t value : *values) {
    if (value >= reading.plan.profiles.size()) return in.fail();
    profiles.emplace_back(static_cast<ProfileId::rep>(value));
  }
}

void read_value(ByteReader& in, Profiles& profiles, const Reading& reading) {
  const std::uint64_t count = in.varint();
  if (count == 0 || count > kMaxProfiles) return in.fail();
  profiles.resize(1);
  while (profiles.size() < count && !in.failed()) {
    ActionProfile actions = profiles[0];
    const std::uint8_t form = in.u8();
    if (form == static_cast<std::uint8_t>(ProfileForm::packed)) {
      read_bits(in, action_bits(reading.bits), actions.size(), setter_of(in, actions));
    } else if (form == static_cast<std::uint8_t>(ProfileForm::changes)) {
      read_changed_actions(in, actions, reading.bits);
    } else {
      in.fail();
    }
    profiles.push_back(std::move(actions));
  }
}

// Returns whether a field needs no entry: the value equals the one in `base`, or travels with the
// blocks.
template <class T>
bool is_said_without_entry(const T& value, const T& base) {
  return value == base;
}

bool is_said_without_entry(const std::vector<Precision>&, const std::vector<Precision>&) {
  return true;
}

bool is_said_without_entry(const Profiles& profiles, const Profiles& base) {
  return std::equal(profiles.begin() + 1, profiles.end(), base.begin() + 1, base.end());
}

void write_entries(ByteWriter& out, const Plan& plan, const Plan& base) {
  for_each_plan_field([&](const auto& field) {
    if (is_said_without_entry(plan.*field.member, base.*field.member)) return;
    ByteWriter body;
    write_value(body, plan.*field.member, block_bits(plan));
    out.entry(field.id, body);
  });
}

// Returns the plan that a full payload without entries describes.
Plan plan_without_entries(std::size_t blocks) {
  Plan plan;
  plan.precision.assign(blocks, Precision::fp32);
  plan.profiles.assign(1, ActionProfile(blocks, MemoryAction::keep));
  return plan;
}

// Returns a checksum of the plan's content, by which a delta detects a wrong base.
std::uint32_t content_check(const Plan& plan) {
  return crc32(full_payload(plan));
}

enum class PayloadKind { full, delta };

void read_entry(std::uint8_t id, PayloadKind kind, ByteReader& in, Plan& plan,
                const Reading& reading) {
  if (id == kBlocksEntry) {
    return kind == PayloadKind::delta ? read_changed_blocks(in, plan, reading.bits) : in.fail();
  }
  bool is_known = false;
  for_each_plan_field([&](const auto& field) {
    if (field.id != id) return;
    is_known = true;
    read_value(in, plan.*field.member, reading);
  });
  if (!is_known) in.fail();
}

Status read_entries(ByteReader& in, PayloadKind kind, Plan& plan, const JobSize& size,
                    BlockBits bits) {
  std::uint8_t last = 0;
  while (!in.failed() && !in.at_end()) {
    const std::uint8_t id = in.u8();
    const std::uint64_t length = in.varint();
    ByteReader body(in.take(length));
    if (in.failed() || id <= last)
      return data_loss("plan: expected entries in ascending order and whole, found entry ", id,
                       " of ", length, " bytes");
    read_entry(id, kind, body, plan, {plan, size, bits});
    if (!body.done()) return data_loss("plan: entry ", id, " is malformed or of another version");
    last = id;
  }
  if (in.failed()) return data_loss("plan: expected more bytes, found their end");
  return ok_status();
}

Status wrong_shape(const std::string& what) {
  return invalid_argument("plan: ", what);
}

}  // namespace

BlockBits block_bits(const Plan& plan) {
  const bool has_level = std::ranges::any_of(plan.profiles, [](const ActionProfile& actions) {
    return std::ranges::any_of(actions, [](MemoryAction a) { return level_of(a) > 0; });
  });
  return has_level ? BlockBits::eight : BlockBits::four;
}

Status check_shape(const Plan& plan) {
  const std::size_t blocks = plan.precision.size();
  if (blocks > kMaxBlocks)
    return wrong_shape(concat("expected at most ", kMaxBlocks, " blocks, found ", blocks));
  if (plan.profiles.empty() || plan.profiles.size() > kMaxProfiles)
    return wrong_shape(
        concat("expected 1 to ", kMaxProfiles, " profiles, found ", plan.profiles.size()));
  for (const ActionProfile& actions : plan.profiles) {
    if (actions.size() != blocks)
      return wrong_shape(
          concat("expected profiles of ", blocks, " blocks, found ", actions.size()));
  }
  std::size_t ranks = 0;
  for_each_per_rank_field(
      [&](const auto& field) { ranks = std::max(ranks, (plan.*field.member).size()); });
  if (ranks > static_cast<std::size_t>(kMaxRanks))
    return wrong_shape(concat("expected at most ", kMaxRanks, " ranks, found ", ranks));
  return ok_status();
}

JobSize size_of(const JobFacts& job) {
  return {static_cast<std::size_t>(std::max(job.world_size, 1)), job.blocks.size()};
}

std::vector<std::byte> full_payload(const Plan& plan) {
  ByteWriter out;
  write_block_table(out, plan, block_bits(plan));
  write_entries(out, plan, plan_without_entries(plan.precision.size()));
  return {out.bytes().begin(), out.bytes().end()};
}

std::vector<std::byte> delta_payload(const Plan& plan, const Plan& base) {
  ByteWriter out;
  out.u32(content_check(base));
  const ByteWriter changed = changed_blocks(plan, base, block_bits(plan));
  if (changed.size() > 0) out.entry(kBlocksEntry, changed);
  write_entries(out, plan, base);
  return {out.bytes().begin(), out.bytes().end()};
}

Result<Plan> read_full_payload(std::span<const std::byte> payload, const JobSize& size,
                               BlockBits bits) {
  ByteReader in(payload);
  Plan plan = plan_without_entries(size.blocks);
  read_block_table(in, plan, bits);
  if (Status status = read_entries(in, PayloadKind::full, plan, size, bits); !status.ok())
    return status;
  return plan;
}

Result<Plan> read_delta_payload(std::span<const std::byte> payload, Plan base, const JobSize& size,
                                BlockBits bits) {
  ByteReader in(payload);
  const std::uint32_t check = in.u32();
  if (in.failed()) return data_loss("plan: expected more bytes, found their end");
  if (check != content_check(base))
    return failed_precondition("plan: the changes are against another plan than the one held here");
  base.activated_round.reset();
  if (Status status = read_entries(in, PayloadKind::delta, base, size, bits); !status.ok())
    return status;
  return base;
}

std::size_t max_payload_bytes(const JobFacts& job) {
  constexpr std::size_t kEntryHead = 11;     // id and the longest length
  constexpr std::size_t kLargestSmall = 64;  // of a field with a fixed size
  constexpr std::size_t kSequenceHead = 10 + 1 + 5 + 1;
  const JobSize size = size_of(job);
  std::size_t entries = 0;
  for_each_plan_field([&]<class T>(const PlanField<T>&) {
    entries += kEntryHead + kLargestSmall;
    if constexpr (kIsPerRank<T>) {
      entries += kSequenceHead + size.ranks * sizeof(typename T::value_type);
    }
  });
  const std::size_t per_profile = 1 + (size.blocks + 1) / 2;
  // A delta is sent only if the delta is shorter than the full payload.
  return size.blocks + 10 + kMaxProfiles * per_profile + entries;
}

}  // namespace cox::wire
