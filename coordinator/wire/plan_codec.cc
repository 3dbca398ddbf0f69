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
#include "coordinator/wire/bit_packing.h"

namespace cox::wire {
namespace {

using Profiles = std::vector<ActionProfile>;

// A delta's entry for blocks whose 4 bits changed; it has the id of the precision.
constexpr std::uint8_t kBlocksEntry = 1;

// The forms of one number per rank. Ranks are many and their numbers few, so the writer takes the
// shortest of three forms: runs of equal numbers, a pattern that repeats (rank modulo GPUs of a
// node), or all numbers in as few bits as they need.
enum class SequenceForm : std::uint8_t { runs = 1, packed = 2, repeated = 3 };

// The forms of a profile beyond the first.
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

// The smallest p with values[i] == values[i - p] for all i >= p, from the longest proper border.
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

// Appends the count, the form and the numbers. Linear in their count.
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

// Nothing on malformed bytes or a count above `max_count`; never allocates more numbers than that.
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

// A block has two bits of precision and two of its action in profile 0.
constexpr unsigned kBlockBits = 4;
constexpr unsigned kActionBits = 2;

unsigned block_bits(const Plan& plan, std::size_t block) {
  return static_cast<unsigned>(plan.precision[block]) |
         static_cast<unsigned>(plan.profiles[0][block]) << 2;
}

void set_block(Plan& plan, std::size_t block, std::uint64_t bits) {
  plan.precision[block] = static_cast<Precision>(bits & 3u);
  plan.profiles[0][block] = static_cast<MemoryAction>((bits >> 2) & 3u);
}

struct Changes {
  ByteWriter list;  // each changed block as the distance from the last one, and its new bits
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

// Takes the next change from the list and calls set(block, bits).
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

void write_block_table(ByteWriter& out, const Plan& plan) {
  write_bits(out, kBlockBits, plan.precision.size(),
             [&](std::size_t b) { return block_bits(plan, b); });
}

void read_block_table(ByteReader& in, Plan& plan) {
  read_bits(in, kBlockBits, plan.precision.size(),
            [&](std::size_t b, std::uint64_t bits) { set_block(plan, b, bits); });
}

ByteWriter changed_blocks(const Plan& plan, const Plan& base) {
  const auto bits_of = [](const Plan& of) {
    return [&of](std::size_t b) { return block_bits(of, b); };
  };
  return changes(plan.precision.size(), kBlockBits, bits_of(plan), bits_of(base)).list;
}

void read_changed_blocks(ByteReader& in, Plan& plan) {
  std::size_t next = 0;
  while (!in.failed() && !in.at_end()) {
    read_change(in, plan.precision.size(), kBlockBits, next,
                [&](std::size_t b, std::uint64_t bits) { set_block(plan, b, bits); });
  }
}

auto bits_of(const ActionProfile& actions) {
  return [&actions](std::size_t b) { return static_cast<unsigned>(actions[b]); };
}

auto setter_of(ActionProfile& actions) {
  return [&actions](std::size_t b, std::uint64_t bits) {
    actions[b] = static_cast<MemoryAction>(bits);
  };
}

void read_changed_actions(ByteReader& in, ActionProfile& actions) {
  std::size_t next = 0;
  for (std::uint64_t count = in.varint(); count > 0 && !in.failed(); --count) {
    read_change(in, actions.size(), kActionBits, next, setter_of(actions));
  }
}

// Writes the value of a field into its entry: core/state_codec.h does it for all but these types.
template <class T>
void write_value(ByteWriter& out, const T& value) {
  state_codec::write(out, value);
}

void write_value(ByteWriter& out, const std::vector<std::uint32_t>& values) {
  write_sequence(out, values);
}

void write_value(ByteWriter& out, const std::vector<ProfileId>& profiles) {
  std::vector<std::uint32_t> values;
  values.reserve(profiles.size());
  for (const ProfileId id : profiles) values.push_back(id.value());
  write_sequence(out, values);
}

// The number of profiles, then all but the first, each in its shorter form: packed, or as changes
// against the first.
void write_value(ByteWriter& out, const Profiles& profiles) {
  out.varint(profiles.size());
  for (std::size_t p = 1; p < profiles.size(); ++p) {
    const ActionProfile& actions = profiles[p];
    ByteWriter packed;
    write_bits(packed, kActionBits, actions.size(), bits_of(actions));
    const Changes changed =
        changes(actions.size(), kActionBits, bits_of(actions), bits_of(profiles[0]));
    ByteWriter listed;
    listed.varint(changed.count);
    listed.append(changed.list.bytes());
    const bool shorter = listed.size() < packed.size();
    out.u8(static_cast<std::uint8_t>(shorter ? ProfileForm::changes : ProfileForm::packed));
    out.append(shorter ? listed.bytes() : packed.bytes());
  }
}

template <class T>
void read_value(ByteReader& in, T& value, const Plan&, const JobSize&) {
  state_codec::read(in, value);
}

// Precision travels with the blocks and has no entry of its own.
void read_value(ByteReader& in, std::vector<Precision>&, const Plan&, const JobSize&) {
  in.fail();
}

void read_value(ByteReader& in, std::vector<std::uint32_t>& values, const Plan&,
                const JobSize& size) {
  auto read = read_sequence(in, size.ranks);
  if (!read) return in.fail();
  values = std::move(*read);
}

void read_value(ByteReader& in, std::vector<ProfileId>& profiles, const Plan& plan,
                const JobSize& size) {
  const auto values = read_sequence(in, size.ranks);
  if (!values) return in.fail();
  profiles.clear();
  profiles.reserve(values->size());
  for (const std::uint32_t value : *values) {
    if (value >= plan.profiles.size()) return in.fail();
    profiles.emplace_back(static_cast<ProfileId::rep>(value));
  }
}

void read_value(ByteReader& in, Profiles& profiles, const Plan&, const JobSize&) {
  const std::uint64_t count = in.varint();
  if (count == 0 || count > kMaxProfiles) return in.fail();
  profiles.resize(1);
  while (profiles.size() < count && !in.failed()) {
    ActionProfile actions = profiles[0];
    const std::uint8_t form = in.u8();
    if (form == static_cast<std::uint8_t>(ProfileForm::packed)) {
      read_bits(in, kActionBits, actions.size(), setter_of(actions));
    } else if (form == static_cast<std::uint8_t>(ProfileForm::changes)) {
      read_changed_actions(in, actions);
    } else {
      in.fail();
    }
    profiles.push_back(std::move(actions));
  }
}

// Returns whether a field needs no entry: it is as in `base`, or travels with the blocks.
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
    write_value(body, plan.*field.member);
    out.entry(field.id, body);
  });
}

// Returns the plan that a full payload without entries stands for.
Plan plan_without_entries(std::size_t blocks) {
  Plan plan;
  plan.precision.assign(blocks, Precision::fp32);
  plan.profiles.assign(1, ActionProfile(blocks, MemoryAction::keep));
  return plan;
}

// Tells a wrong base of a delta: equal for plans with equal content.
std::uint32_t content_check(const Plan& plan) {
  return crc32(full_payload(plan));
}

enum class PayloadKind { full, delta };

void read_entry(std::uint8_t id, PayloadKind kind, ByteReader& in, Plan& plan,
                const JobSize& size) {
  if (id == kBlocksEntry) {
    return kind == PayloadKind::delta ? read_changed_blocks(in, plan) : in.fail();
  }
  bool is_known = false;
  for_each_plan_field([&](const auto& field) {
    if (field.id != id) return;
    is_known = true;
    read_value(in, plan.*field.member, plan, size);
  });
  if (!is_known) in.fail();
}

Status read_entries(ByteReader& in, PayloadKind kind, Plan& plan, const JobSize& size) {
  std::uint8_t last = 0;
  while (!in.failed() && !in.at_end()) {
    const std::uint8_t id = in.u8();
    const std::uint64_t length = in.varint();
    ByteReader body(in.take(length));
    if (in.failed() || id <= last)
      return data_loss("plan: expected entries in ascending order and whole, found entry " +
                       std::to_string(id) + " of " + std::to_string(length) + " bytes");
    read_entry(id, kind, body, plan, size);
    if (!body.done())
      return data_loss("plan: entry " + std::to_string(id) + " is malformed or of another version");
    last = id;
  }
  if (in.failed()) return data_loss("plan: expected more bytes, found their end");
  return ok_status();
}

Status wrong_shape(const std::string& what) {
  return invalid_argument("plan: " + what);
}

// PlanHead stands before the payload in the file form of a plan.
struct PlanHead {
  PlanId id;
  RoundId earliest_round;
  std::optional<RoundId> activated_round;
  std::uint16_t blocks = 0;
  static auto fields(auto& self) {
    return std::tie(self.id.incarnation, self.id.number, self.earliest_round, self.activated_round,
                    self.blocks);
  }
};

}  // namespace

Status check_shape(const Plan& plan) {
  const std::size_t blocks = plan.precision.size();
  if (blocks > kMaxBlocks)
    return wrong_shape("expected at most " + std::to_string(kMaxBlocks) + " blocks, found " +
                       std::to_string(blocks));
  if (plan.profiles.empty() || plan.profiles.size() > kMaxProfiles)
    return wrong_shape("expected 1 to " + std::to_string(kMaxProfiles) + " profiles, found " +
                       std::to_string(plan.profiles.size()));
  for (const ActionProfile& actions : plan.profiles) {
    if (actions.size() != blocks)
      return wrong_shape("expected profiles of " + std::to_string(blocks) + " blocks, found " +
                         std::to_string(actions.size()));
  }
  const std::size_t ranks = std::max(plan.rank_profile.size(), plan.shares.size());
  if (ranks > static_cast<std::size_t>(kMaxRanks))
    return wrong_shape("expected at most " + std::to_string(kMaxRanks) + " ranks, found " +
                       std::to_string(ranks));
  return ok_status();
}

JobSize size_of(const JobFacts& job) {
  return {static_cast<std::size_t>(std::max(job.world_size, 1)), job.blocks.size()};
}

std::vector<std::byte> full_payload(const Plan& plan) {
  ByteWriter out;
  write_block_table(out, plan);
  write_entries(out, plan, plan_without_entries(plan.precision.size()));
  return out.bytes();
}

std::vector<std::byte> delta_payload(const Plan& plan, const Plan& base) {
  ByteWriter out;
  out.u32(content_check(base));
  const ByteWriter changed = changed_blocks(plan, base);
  if (changed.size() > 0) out.entry(kBlocksEntry, changed);
  write_entries(out, plan, base);
  return out.bytes();
}

Result<Plan> read_full_payload(std::span<const std::byte> payload, const JobSize& size) {
  ByteReader in(payload);
  Plan plan = plan_without_entries(size.blocks);
  read_block_table(in, plan);
  if (Status status = read_entries(in, PayloadKind::full, plan, size); !status.ok()) return status;
  return plan;
}

Result<Plan> read_delta_payload(std::span<const std::byte> payload, Plan base,
                                const JobSize& size) {
  ByteReader in(payload);
  const std::uint32_t check = in.u32();
  if (in.failed()) return data_loss("plan: expected more bytes, found their end");
  if (check != content_check(base))
    return failed_precondition("plan: the changes are against another plan than the one held here");
  base.activated_round.reset();
  if (Status status = read_entries(in, PayloadKind::delta, base, size); !status.ok()) return status;
  return base;
}

std::size_t max_payload_bytes(const JobFacts& job) {
  constexpr std::size_t kEntryHead = 11;     // id and the longest length
  constexpr std::size_t kLargestSmall = 64;  // a field whose size depends on nothing
  constexpr std::size_t kSequenceHead = 10 + 1 + 5 + 1;
  const JobSize size = size_of(job);
  std::size_t entries = 0;
  for_each_plan_field([&](const auto&) { entries += kEntryHead + kLargestSmall; });
  const std::size_t per_profile = 1 + (size.blocks + 3) / 4;
  const std::size_t sequences = 2 * kSequenceHead + size.ranks * (2 + 4);
  // A delta is sent only where it is shorter than the full payload.
  return (size.blocks + 1) / 2 + 10 + kMaxProfiles * per_profile + sequences + entries;
}

std::string serialize(const Plan& plan) {
  if (!check_shape(plan).ok()) return {};
  const auto blocks = static_cast<std::uint16_t>(plan.precision.size());
  ByteWriter out;
  state_codec::write(out, PlanHead{plan.id, plan.earliest_round, plan.activated_round, blocks});
  out.append(full_payload(plan));
  return std::string(out.text());
}

Result<Plan> parse_plan(std::string_view bytes) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  PlanHead head;
  state_codec::read(in, head);
  if (in.failed() || head.blocks > kMaxBlocks)
    return data_loss("plan: expected ids, rounds and at most " + std::to_string(kMaxBlocks) +
                     " blocks, found other bytes");
  Result<Plan> plan = read_full_payload(in.take(in.left()), {.blocks = head.blocks});
  if (!plan.ok()) return plan;
  plan->id = head.id;
  plan->earliest_round = head.earliest_round;
  plan->activated_round = head.activated_round;
  return plan;
}

}  // namespace cox::wire
