#include <algorithm>
#include <limits>
#include <string>

#include "coordinator/wire/plan_defaults.h"
#include "coordinator/wire/plan_payload.h"
#include "coordinator/wire/sequence.h"

namespace cox::wire {
namespace {

using Actions = std::vector<MemoryAction>;

std::size_t max_ranks(const JobFacts& job) {
  return static_cast<std::size_t>(std::max(job.world_size, 1));
}

void set_block(Plan& plan, std::size_t block, unsigned bits) {
  plan.precision[block] = static_cast<Precision>(bits & 3u);
  plan.classes[0][block] = static_cast<MemoryAction>((bits >> 2) & 3u);
}

void read_block_table(ByteReader& in, Plan& plan) {
  for (std::size_t b = 0; b < plan.precision.size(); b += 2) {
    const unsigned byte = in.u8();
    set_block(plan, b, byte & 15u);
    if (b + 1 < plan.precision.size()) {
      set_block(plan, b + 1, byte >> 4);
    } else if (byte >> 4 != 0) {
      in.fail();
    }
  }
}

void read_changed_blocks(ByteReader& in, Plan& plan) {
  std::size_t next = 0;
  while (!in.failed() && !in.at_end()) {
    const std::uint64_t word = in.varint();
    const std::uint64_t gap = word >> 4;
    if (gap >= plan.precision.size() - next) return in.fail();
    next += static_cast<std::size_t>(gap);
    set_block(plan, next, static_cast<unsigned>(word & 15u));
    ++next;
  }
}

void read_packed_actions(ByteReader& in, Actions& actions) {
  const auto bytes = in.take((actions.size() + 3) / 4);
  if (in.failed()) return;
  for (std::size_t b = 0; b < actions.size(); ++b) {
    const auto byte = std::to_integer<unsigned>(bytes[b / 4]);
    actions[b] = static_cast<MemoryAction>((byte >> (2 * (b % 4))) & 3u);
  }
}

void read_changed_actions(ByteReader& in, Actions& actions) {
  const std::uint64_t count = in.varint();
  std::size_t next = 0;
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    const std::uint64_t word = in.varint();
    const std::uint64_t gap = word >> 2;
    if (gap >= actions.size() - next) return in.fail();
    next += static_cast<std::size_t>(gap);
    actions[next] = static_cast<MemoryAction>(word & 3u);
    ++next;
  }
}

void read_classes(ByteReader& in, Plan& plan) {
  const std::uint64_t count = in.varint();
  if (count == 0 || count > kMaxClasses) return in.fail();
  plan.classes.resize(1);
  while (plan.classes.size() < count && !in.failed()) {
    Actions actions = plan.classes[0];
    switch (static_cast<ClassForm>(in.u8())) {
      case ClassForm::packed:
        read_packed_actions(in, actions);
        break;
      case ClassForm::changes:
        read_changed_actions(in, actions);
        break;
      default:
        in.fail();
    }
    plan.classes.push_back(std::move(actions));
  }
}

void read_rank_class(ByteReader& in, Plan& plan, const JobFacts& job) {
  const auto values = read_sequence(in, max_ranks(job));
  if (!values) return in.fail();
  plan.rank_class.clear();
  plan.rank_class.reserve(values->size());
  for (const std::uint32_t value : *values) {
    if (value >= plan.classes.size()) return in.fail();
    plan.rank_class.emplace_back(static_cast<ClassId::rep>(value));
  }
}

void read_shares(ByteReader& in, Plan& plan, const JobFacts& job) {
  auto values = read_sequence(in, max_ranks(job));
  if (!values) return in.fail();
  plan.shares = std::move(*values);
}

std::uint32_t read_u32_varint(ByteReader& in) {
  const std::uint64_t value = in.varint();
  if (value > std::numeric_limits<std::uint32_t>::max()) in.fail();
  return static_cast<std::uint32_t>(value);
}

void read_scaler(ByteReader& in, ScalerRules& rules) {
  rules.initial_scale = in.f32();
  rules.growth_factor = in.f32();
  rules.backoff_factor = in.f32();
  rules.growth_interval = in.u32();
  rules.min_scale = in.f32();
  rules.max_scale = in.f32();
  rules.hysteresis = in.u32();
  rules.headroom_bits = in.u32();
}

enum class PayloadKind { full, delta };

void read_entry(PlanEntry type, PayloadKind kind, ByteReader& in, Plan& plan, const JobFacts& job) {
  switch (type) {
    case PlanEntry::blocks:
      return kind == PayloadKind::delta ? read_changed_blocks(in, plan) : in.fail();
    case PlanEntry::classes:
      return read_classes(in, plan);
    case PlanEntry::rank_class:
      return read_rank_class(in, plan, job);
    case PlanEntry::shares:
      return read_shares(in, plan, job);
    case PlanEntry::cadence:
      plan.cadence_steps = read_u32_varint(in);
      return;
    case PlanEntry::scaler:
      return read_scaler(in, plan.scaler);
    case PlanEntry::hold:
      plan.hold_until = RoundId(in.varint());
      return;
    case PlanEntry::rollback:
      plan.rollback.ticket = read_u32_varint(in);
      plan.rollback.before_round = RoundId(in.varint());
      return;
    case PlanEntry::step_samples:
      plan.step_samples = in.varint();
      return;
    case PlanEntry::unspecified:
      break;
  }
  in.fail();
}

Status read_entries(ByteReader& in, PayloadKind kind, Plan& plan, const JobFacts& job) {
  unsigned last = 0;
  while (!in.failed() && !in.at_end()) {
    const unsigned type = in.u8();
    const std::uint64_t length = in.varint();
    ByteReader body(in.take(length));
    if (in.failed() || type <= last)
      return data_loss("mask: expected entries in ascending order and whole, found type " +
                       std::to_string(type) + " of " + std::to_string(length) +
                       " bytes; ask for the full plan");
    read_entry(static_cast<PlanEntry>(type), kind, body, plan, job);
    if (!body.done())
      return data_loss("mask: entry of type " + std::to_string(type) +
                       " is malformed or of another version; ask for the full plan");
    last = type;
  }
  if (in.failed()) return data_loss("mask: the payload ends too early; ask for the full plan");
  return ok_status();
}

}  // namespace

Result<Plan> read_full_payload(std::span<const std::byte> payload, const JobFacts& job) {
  ByteReader in(payload);
  Plan plan = plan_of_absent_entries(job.blocks.size());
  read_block_table(in, plan);
  if (Status status = read_entries(in, PayloadKind::full, plan, job); !status.ok()) return status;
  return plan;
}

Result<Plan> read_delta_payload(std::span<const std::byte> payload, Plan base,
                                const JobFacts& job) {
  ByteReader in(payload);
  const std::uint32_t check = in.u32();
  if (in.failed()) return data_loss("mask: the payload ends too early; ask for the full plan");
  if (check != content_check(base))
    return failed_precondition(
        "mask: the changes are against another plan than the one held here; ask for the full plan");
  base.activated_round.reset();
  if (Status status = read_entries(in, PayloadKind::delta, base, job); !status.ok()) return status;
  return base;
}

std::size_t max_payload_bytes(const JobFacts& job) {
  constexpr std::size_t kEntryHead = 11;  // type and the longest length
  constexpr std::size_t kSmallEntries = 9 * kEntryHead + 32 + 5 + 10 + 15 + 10;
  const std::size_t blocks = job.blocks.size();
  const std::size_t per_class = 1 + (blocks + 3) / 4;
  constexpr std::size_t kSequenceHead = 10 + 1 + 5 + 1;
  const std::size_t sequences = 2 * kSequenceHead + max_ranks(job) * (2 + 4);
  // A delta is sent only where it is shorter than the full payload.
  return (blocks + 1) / 2 + 10 + kMaxClasses * per_class + sequences + kSmallEntries;
}

}  // namespace cox::wire
