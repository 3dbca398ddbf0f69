// Codec of the journal's records and the saved control state: the messages of control.proto.
// core/state_codec.h writes the messages from the lists of fields below. Doubles and floats keep
// every bit (NaN, infinities, -0). The step path never uses this codec.
//
// Pure functions, any thread. Parsing treats the bytes as hostile. The parser returns data_loss for
// bytes that are no such record, and for a record with more parts than its job can have. The check
// of the parts comes before the allocation of memory for them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan_fields.h"
#include "coordinator/core/status.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/decide.h"
#include "coordinator/wire/plan_codec.h"

namespace cox::wire {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 28;
inline constexpr std::size_t kMaxPolicies = 256;

// JournalStart has all inputs that Decide needs to run a journal again, except the signals.
struct JournalStart {
  JobFacts job;
  std::string config;  // the configuration's text()
  ControlState state;
  std::vector<std::string> policies;  // names, in the order in which Decide calls the policies
  std::optional<Decision> first{};    // begin_job()'s answer to `state`; empty: no answer
};

// JournalRound has the signals that Decide read in one round, and the plan and the reasons of the
// round's decision.
struct JournalRound {
  StepSignals signals;
  Decision decision;
};

}  // namespace cox::wire

// Lists of fields (core/fields.h) of the values above and of their parts, for types that have no
// fields() of their own. Frequent fields have numbers below 16, because a tag below 16 takes one
// byte.
namespace cox {

// Any number is read back, because later versions may add numbers.
template <>
inline constexpr ReportFault kLargestOf<ReportFault> = static_cast<ReportFault>(0xFF);
template <>
inline constexpr std::string_view kNameOf<ReportFault> = "ReportFault";
template <>
inline constexpr FragmentKind kLargestOf<FragmentKind> = static_cast<FragmentKind>(0xFFFF);

template <>
struct ListOf<History> {
  using Element = RoundFacts;
  static constexpr std::size_t kExactly = 0;
  static std::size_t most(const History&) { return History::kCapacity; }
  static std::size_t size(const History& history) { return history.size(); }
  static const RoundFacts& at(const History& history, std::size_t place) {
    return history.rounds()[place];
  }
  static void clear(History& history) { history = {}; }
  static bool put(History& history, std::size_t, RoundFacts&& facts) {
    history.add(facts);
    return true;
  }
};

namespace wire {

// PackedActions is the byte form of the actions of a front's point. A start may have millions of
// points. The form has three parts: the count as a varint, the width of an action as a byte, and
// the bits of the actions. The width is 2 bits, or 4 if an action is a level of recompute.
template <class Vector>
struct PackedActions {
  Vector& values;
};

template <class Vector>
PackedActions<Vector> packed(Vector& values) {
  return {values};
}

std::string packed_actions(std::span<const MemoryAction> actions);
// Returns false for bytes that packed_actions() does not write.
bool unpack_actions(std::string_view bytes, std::vector<MemoryAction>& actions);

}  // namespace wire

template <class Vector>
struct BytesOf<wire::PackedActions<Vector>> {
  static std::string of(const wire::PackedActions<Vector>& packed) {
    return packed.values.empty() ? std::string() : wire::packed_actions(packed.values);
  }
  static bool set(const wire::PackedActions<Vector>& packed, std::string_view bytes) {
    packed.values.clear();
    return bytes.empty() || wire::unpack_actions(bytes, packed.values);
  }
};

auto list_fields(Is<Capabilities> auto& it) {
  return message("Capabilities", field(1, "precisions", it.precisions),
                 field(2, "actions", it.actions), field(3, "shares", it.shares),
                 field(4, "accumulation", it.accumulation), field(5, "rollback", it.rollback));
}

auto list_fields(Is<MemoryPoint> auto& it) {
  return message("MemoryPoint", field(1, "peak_bytes", it.peak_bytes),
                 field(2, "added_us", it.added_us), field(3, "actions", wire::packed(it.actions)));
}

auto list_fields(Is<MemoryModel> auto& it) {
  return message("MemoryModel", field(1, "front", at_most(kMaxFrontPoints, it.front)),
                 field(2, "base_bytes", it.base_bytes), field(3, "step_us", it.step_us),
                 field(4, "kept_bytes", at_most(kMaxBlocks, it.kept_bytes)),
                 field(5, "samples", it.samples));
}

auto list_fields(Is<MemoryFacts> auto& it) {
  constexpr wire::JobSize kLargest;
  return message("MemoryFacts", field(1, "models", at_most(kMaxMemoryModels, it.models)),
                 field(2, "model_of_rank", at_most(kLargest.ranks, it.model_of_rank)),
                 field(3, "limit_bytes", at_most(kLargest.ranks, it.limit_bytes)));
}

auto list_fields(Is<BlockFormats> auto& it) {
  return message("BlockFormats", field(1, "step_us", it.step_us));
}

auto list_fields(Is<PrecisionFacts> auto& it) {
  return message("PrecisionFacts", field(1, "blocks", at_most(kMaxBlocks, it.blocks)),
                 field(2, "emulated", it.emulated));
}

auto list_fields(Is<JobFacts> auto& it) {
  constexpr wire::JobSize kLargest;
  return message("JobFacts", field(1, "name", it.name), field(2, "incarnation", it.incarnation),
                 field(3, "world_size", it.world_size),
                 field(4, "node_of_rank", at_most(kLargest.ranks, it.node_of_rank)),
                 field(5, "blocks", at_most(kMaxBlocks, it.blocks)),
                 field(6, "global_batch", it.global_batch), field(7, "micro_batch", it.micro_batch),
                 field(8, "capabilities", it.capabilities), field(9, "memory", it.memory),
                 field(10, "precision", it.precision));
}

auto list_fields(Is<Fragment> auto& it) {
  return message("Fragment", field(1, "kind", it.kind), field(2, "size", it.size),
                 field(3, "payload", it.payload));
}

// Leaves out magic and version, which are the same in every signal so far.
auto list_fields(Is<RankSignal> auto& it) {
  return message("RankSignal", field(1, "rank", it.rank), field(2, "round", it.round),
                 field(3, "step", it.step), field(4, "plan_held", it.plan_held),
                 field(5, "plan_applied", it.plan_applied), field(6, "loss", it.loss),
                 field(7, "weight", it.weight), field(8, "gradient_norm", it.gradient_norm),
                 field(9, "wall_seconds", it.wall_seconds),
                 field(10, "phase_seconds", it.phase_seconds), field(11, "rounds", it.rounds),
                 field(12, "samples", it.samples), field(13, "tokens", it.tokens),
                 field(14, "incarnation", it.incarnation), field(15, "checksum", it.checksum),
                 field(16, "flags", it.flags), field(17, "nonfinite_values", it.nonfinite_values),
                 field(18, "control_errors", it.control_errors),
                 field(19, "memory_used_bytes", it.memory_used_bytes),
                 field(20, "memory_peak_bytes", it.memory_peak_bytes),
                 field(21, "memory_limit_bytes", it.memory_limit_bytes),
                 field(22, "fragment", it.fragment), field(23, "loss_scale", it.loss_scale),
                 field(24, "reduction_seconds", it.reduction_seconds),
                 field(25, "reduction_exposed_seconds", it.reduction_exposed_seconds),
                 field(26, "flops", it.flops), field(27, "waiting_seconds", it.waiting_seconds),
                 field(28, "recompute_seconds", it.recompute_seconds),
                 field(29, "save_seconds", it.save_seconds));
}

auto list_fields(Is<FaultyReport> auto& it) {
  return message("FaultyReport", field(1, "rank", it.rank), field(2, "fault", it.fault),
                 field(3, "round", it.round));
}

auto list_fields(Is<Magnitude> auto& it) {
  return message("Magnitude", field(1, "value", it.value), field(2, "rank", it.rank));
}

auto list_fields(Is<BlockEvidence> auto& it) {
  return message("BlockEvidence", field(1, "overflow_forward", it.overflow_forward),
                 field(2, "overflow_backward", it.overflow_backward),
                 field(3, "rank_of_overflow", it.rank_of_overflow), field(4, "sampled", it.sampled),
                 field(5, "underflow", it.underflow), field(6, "saturated", it.saturated),
                 field(7, "activation", it.activation), field(8, "gradient", it.gradient),
                 field(9, "noise_sum", it.noise_sum), field(10, "noise_count", it.noise_count),
                 field(11, "underflow_ratio", it.underflow_ratio),
                 field(12, "saturated_ratio", it.saturated_ratio),
                 field(13, "signal_over_noise", it.signal_over_noise));
}

auto list_fields(Is<RoundFacts> auto& it) {
  return message("RoundFacts", field(1, "round", it.round), field(2, "step", it.step),
                 field(3, "loss", it.loss), field(4, "gradient_norm", it.gradient_norm),
                 field(5, "own_seconds_median", it.own_seconds_median),
                 field(6, "wall_seconds_median", it.wall_seconds_median),
                 field(7, "nonfinite_ranks", it.nonfinite_ranks),
                 field(8, "plan_applied", it.plan_applied));
}

auto list_fields(Is<NamedPolicyState> auto& it) {
  return message("NamedPolicyState", field(1, "policy", it.policy), field(2, "state", it.state));
}

auto list_fields(Is<ControlState> auto& it) {
  return message("ControlState", field(1, "plan", it.plan), field(2, "history", it.history),
                 field(3, "policies", at_most(wire::kMaxPolicies, it.policies)));
}

namespace wire {

// Sized is a value and the size of the job for which the value is read.
template <class Value>
struct Sized {
  Value& value;
  JobSize size;
};

template <class Value>
requires Is<Value, StepSignals>
auto list_fields(const Sized<Value>& it) {
  return message("StepSignals", field(1, "round", it.value.round),
                 field(2, "now", it.value.now.seconds),
                 field(3, "reports", at_most(it.size.ranks, it.value.reports)),
                 field(4, "faults", at_most(it.size.faults(), it.value.faults)),
                 field(5, "evidence", at_most(it.size.blocks, it.value.evidence)));
}

// Leaves out the summary, because the signals determine the summary.
template <class Value>
requires Is<Value, Decision>
auto list_fields(const Sized<Value>& it) {
  return message("Decision", field(1, "plan", it.value.plan),
                 field(2, "reasons", at_most(it.size.reasons(), it.value.reasons)));
}

template <class Signals, class Answer>
struct RoundParts {
  Sized<Signals> signals;
  Sized<Answer> decision;
};

template <class Signals, class Answer>
auto list_fields(const RoundParts<Signals, Answer>& it) {
  return message("JournalRound", field(1, "signals", it.signals),
                 field(2, "decision", it.decision));
}

}  // namespace wire

// Only a journal's start has a decision as an optional field.
auto list_fields(Is<Decision> auto& it) {
  return list_fields(wire::Sized<std::remove_reference_t<decltype(it)>>{it, {}});
}

namespace wire {

auto list_fields(Is<JournalStart> auto& it) {
  return message("JournalStart", field(1, "job", it.job), field(2, "config", it.config),
                 field(3, "state", it.state),
                 field(4, "policies", at_most(kMaxPolicies, it.policies)),
                 field(5, "first", it.first));
}

std::string serialize(const JournalStart& value);
// Returns the bytes of a JournalRound, from its parts.
std::string serialize(const StepSignals& signals, const Decision& decision);
std::string serialize(const ControlState& value);

Result<JournalStart> parse_journal_start(std::string_view bytes);
Result<JournalRound> parse_journal_round(std::string_view bytes, const JobSize& size);
Result<ControlState> parse_control_state(std::string_view bytes);

}  // namespace wire
}  // namespace cox
