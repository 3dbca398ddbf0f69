#include <algorithm>
#include <string>

#include "coordinator/core/hash.h"
#include "coordinator/wire/plan_defaults.h"
#include "coordinator/wire/plan_payload.h"
#include "coordinator/wire/sequence.h"

namespace cox::wire {
namespace {

using Actions = std::vector<MemoryAction>;

std::uint8_t nibble(Precision precision, MemoryAction action) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(precision) | static_cast<unsigned>(action)
                                                                          << 2);
}

void write_block_table(ByteWriter& out, const Plan& plan) {
  const std::size_t blocks = plan.precision.size();
  const auto at = [&](std::size_t b) -> unsigned {
    return b < blocks ? nibble(plan.precision[b], plan.classes[0][b]) : 0u;
  };
  for (std::size_t b = 0; b < blocks; b += 2) {
    out.u8(static_cast<std::uint8_t>(at(b) | at(b + 1) << 4));
  }
}

// Each changed block as the distance from the last one, and its new four bits.
ByteWriter changed_blocks(const Plan& plan, const Plan& base) {
  ByteWriter out;
  std::size_t next = 0;
  for (std::size_t b = 0; b < plan.precision.size(); ++b) {
    const std::uint8_t now = nibble(plan.precision[b], plan.classes[0][b]);
    if (now == nibble(base.precision[b], base.classes[0][b])) continue;
    out.varint((b - next) << 4 | now);
    next = b + 1;
  }
  return out;
}

ByteWriter packed_actions(const Actions& actions) {
  ByteWriter out;
  for (std::size_t b = 0; b < actions.size(); b += 4) {
    unsigned byte = 0;
    for (std::size_t i = 0; i < 4 && b + i < actions.size(); ++i) {
      byte |= static_cast<unsigned>(actions[b + i]) << (2 * i);
    }
    out.u8(static_cast<std::uint8_t>(byte));
  }
  return out;
}

ByteWriter changed_actions(const Actions& actions, const Actions& first) {
  ByteWriter list;
  std::size_t count = 0;
  std::size_t next = 0;
  for (std::size_t b = 0; b < actions.size(); ++b) {
    if (actions[b] == first[b]) continue;
    list.varint((b - next) << 2 | static_cast<std::size_t>(actions[b]));
    next = b + 1;
    ++count;
  }
  ByteWriter out;
  out.varint(count);
  out.append(list.bytes());
  return out;
}

// The number of classes, then all but the first, each in its shorter form.
ByteWriter classes_body(const Plan& plan) {
  ByteWriter out;
  out.varint(plan.classes.size());
  for (std::size_t c = 1; c < plan.classes.size(); ++c) {
    const ByteWriter packed = packed_actions(plan.classes[c]);
    const ByteWriter changed = changed_actions(plan.classes[c], plan.classes[0]);
    const bool shorter = changed.size() < packed.size();
    out.u8(static_cast<std::uint8_t>(shorter ? ClassForm::changes : ClassForm::packed));
    out.append(shorter ? changed.bytes() : packed.bytes());
  }
  return out;
}

ByteWriter rank_class_body(const Plan& plan) {
  std::vector<std::uint32_t> values;
  values.reserve(plan.rank_class.size());
  for (const ClassId id : plan.rank_class) values.push_back(id.value());
  ByteWriter out;
  write_sequence(out, values);
  return out;
}

ByteWriter shares_body(const Plan& plan) {
  ByteWriter out;
  write_sequence(out, plan.shares);
  return out;
}

ByteWriter scaler_body(const ScalerRules& rules) {
  ByteWriter out;
  out.f32(rules.initial_scale);
  out.f32(rules.growth_factor);
  out.f32(rules.backoff_factor);
  out.u32(rules.growth_interval);
  out.f32(rules.min_scale);
  out.f32(rules.max_scale);
  out.u32(rules.hysteresis);
  out.u32(rules.headroom_bits);
  return out;
}

ByteWriter number_body(std::uint64_t value) {
  ByteWriter out;
  out.varint(value);
  return out;
}

ByteWriter rollback_body(const RollbackOrder& order) {
  ByteWriter out;
  out.varint(order.ticket);
  out.varint(order.before_round.value());
  return out;
}

// What differs from `base`. The classes beyond the first may be written as changes against the
// first, so they follow it. For a full payload the base is what absent entries mean.
void write_entries(ByteWriter& out, const Plan& plan, const Plan& base) {
  const auto put = [&](PlanEntry type, const ByteWriter& body) {
    out.entry(static_cast<std::uint8_t>(type), body);
  };
  const bool same_classes = std::equal(plan.classes.begin() + 1, plan.classes.end(),
                                       base.classes.begin() + 1, base.classes.end());
  if (!same_classes) put(PlanEntry::classes, classes_body(plan));
  if (plan.rank_class != base.rank_class) put(PlanEntry::rank_class, rank_class_body(plan));
  if (plan.shares != base.shares) put(PlanEntry::shares, shares_body(plan));
  if (plan.cadence_steps != base.cadence_steps)
    put(PlanEntry::cadence, number_body(plan.cadence_steps));
  if (!(plan.scaler == base.scaler)) put(PlanEntry::scaler, scaler_body(plan.scaler));
  if (plan.hold_until != base.hold_until)
    put(PlanEntry::hold, number_body(plan.hold_until.value()));
  if (!(plan.rollback == base.rollback)) put(PlanEntry::rollback, rollback_body(plan.rollback));
  if (plan.step_samples != base.step_samples)
    put(PlanEntry::step_samples, number_body(plan.step_samples));
}

Status wrong_shape(const std::string& what) {
  return invalid_argument("mask: " + what);
}

}  // namespace

Status check_shape(const Plan& plan) {
  const std::size_t blocks = plan.precision.size();
  if (blocks > kMaxBlocks)
    return wrong_shape("expected at most " + std::to_string(kMaxBlocks) + " blocks, found " +
                       std::to_string(blocks));
  if (plan.classes.empty() || plan.classes.size() > kMaxClasses)
    return wrong_shape("expected 1 to " + std::to_string(kMaxClasses) + " classes, found " +
                       std::to_string(plan.classes.size()));
  for (const Actions& actions : plan.classes) {
    if (actions.size() != blocks)
      return wrong_shape("expected classes of " + std::to_string(blocks) + " blocks, found " +
                         std::to_string(actions.size()));
  }
  const std::size_t ranks = std::max(plan.rank_class.size(), plan.shares.size());
  if (ranks > static_cast<std::size_t>(kMaxRanks))
    return wrong_shape("expected at most " + std::to_string(kMaxRanks) + " ranks, found " +
                       std::to_string(ranks));
  return ok_status();
}

std::vector<std::byte> full_payload(const Plan& plan) {
  ByteWriter out;
  write_block_table(out, plan);
  write_entries(out, plan, plan_of_absent_entries(plan.precision.size()));
  return out.bytes();
}

std::vector<std::byte> delta_payload(const Plan& plan, const Plan& base) {
  ByteWriter out;
  out.u32(content_check(base));
  const ByteWriter changed = changed_blocks(plan, base);
  if (changed.size() > 0) out.entry(static_cast<std::uint8_t>(PlanEntry::blocks), changed);
  write_entries(out, plan, base);
  return out.bytes();
}

std::uint32_t content_check(const Plan& plan) {
  ByteWriter out;
  write_block_table(out, plan);
  out.u32(static_cast<std::uint32_t>(plan.classes.size()));
  for (const Actions& actions : plan.classes) out.append(packed_actions(actions).bytes());
  out.u32(static_cast<std::uint32_t>(plan.rank_class.size()));
  for (const ClassId id : plan.rank_class) out.varint(id.value());
  out.u32(static_cast<std::uint32_t>(plan.shares.size()));
  for (const std::uint32_t share : plan.shares) out.varint(share);
  out.u32(plan.cadence_steps);
  out.append(scaler_body(plan.scaler).bytes());
  out.u64(plan.hold_until.value());
  out.append(rollback_body(plan.rollback).bytes());
  out.u64(plan.step_samples);
  return crc32(out.bytes());
}

}  // namespace cox::wire
