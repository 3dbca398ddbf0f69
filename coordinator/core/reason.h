// Reason: why something changed, or why it did not. Every proposal, veto and clamp leaves a reason.
// The journal keeps reasons, metrics count reasons by code, the status page shows the sentences.
// Plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/units.h"

namespace cox {

// PolicyKind names the policies, numbered in the order in which they were added. Values are written
// to journals: never renumber. `none` marks reasons of Decide itself.
enum class PolicyKind : std::uint8_t {
  none = 0,
  guard = 1,
  loss_scale = 2,
  precision = 3,
  memory = 4,
  stragglers = 5,
  shares = 6,
  // 7 was cadence
  custom = 8,  // registered by the user
  accumulation = 9,
};
std::string_view to_string(PolicyKind kind);

// Each kind with its name, in the order of numbers.
struct NamedPolicyKind {
  PolicyKind kind;
  std::string_view name;
};
inline constexpr auto kPolicyKinds = std::to_array<NamedPolicyKind>({
    {PolicyKind::none, "decide"},
    {PolicyKind::guard, "guard"},
    {PolicyKind::loss_scale, "loss_scale"},
    {PolicyKind::precision, "precision"},
    {PolicyKind::memory, "memory"},
    {PolicyKind::stragglers, "stragglers"},
    {PolicyKind::shares, "shares"},
    {PolicyKind::custom, "custom"},
    {PolicyKind::accumulation, "accumulation"},
});
inline constexpr PolicyKind kLastPolicyKind = kPolicyKinds.back().kind;

// Outcome is the result of the change that the reason is about.
enum class Outcome : std::uint8_t {
  unspecified = 0,
  changed = 1,    // in the published plan
  unchanged = 2,  // examined, no change needed
  observed = 3,   // would have changed, but the policy only observes
  vetoed = 4,     // held back by another rule (hold, plan in flight, user override)
  clamped = 5,    // changed, but less than asked for
  reported = 6,   // a finding, about no knob
};
inline constexpr auto kOutcomeNames = std::to_array<std::string_view>(
    {"unspecified", "changed", "unchanged", "observed", "vetoed", "clamped", "reported"});
std::string_view to_string(Outcome outcome);

// ReasonCode is the reason for machines. Values are written to journals and metric labels: append
// only, never renumber.
enum class ReasonCode : std::uint16_t {
  unspecified = 0,
  // Decide; 6 was full_plan_resent
  plan_in_flight = 1,
  hold_in_force = 2,
  not_capable = 3,
  invalid_proposal = 4,
  override_applied = 5,
  ranks_missing = 7,
  nobody_applies_plans = 8,
  restored_at_other_world_size = 9,
  policy_failed = 10,
  taken_back = 11,       // a change promised a shorter step and surely did not bring one
  take_back_stays = 12,  // the same, but taking the change back would not fit
  resting = 13,          // a similar change was taken back not long ago
  // guard
  nonfinite_step = 20,
  nonfinite_streak = 21,
  loss_spike = 22,
  rollback_limit = 23,
  guard_recovered = 24,
  // stragglers
  straggler_found = 40,
  straggler_gone = 41,
  straggler_phase_moved = 42,
  straggler_host = 43,       // all ranks of a host are slow
  straggler_job_slow = 44,   // the job is slower than it was, and no rank is to blame
  straggler_job_gone = 45,   // the job is no longer slow
  straggler_transient = 46,  // a rank pauses again and again: counted, not acted upon
  straggler_advice = 47,     // to a person, when no decision is left
  // shares; 60 was shares_forced
  shares_changed = 61,     // follow the speed of the ranks
  shares_kept = 62,        // examined, and not worth a change
  shares_limited = 63,     // a memory cap or minimum share holds them back
  shares_unmeetable = 64,  // caps and minima leave no way to place the batch
  shares_hint = 65,        // the user's hint, at the start
  // memory
  memory_over_budget = 80,
  memory_breach = 81,
  memory_infeasible = 82,
  memory_room = 83,
  memory_fits = 84,
  memory_rules = 85,
  memory_block_failed = 86,
  memory_block_retried = 87,
  memory_straggler = 88,
  memory_unknown = 89,
  // loss scale
  overflow_named = 100,    // the block in which a non-finite value arose
  overflow_outside = 101,  // a non-finite value arose outside of all blocks
  scaler_rules = 102,
  scaler_floor = 103,  // overflows go on at the smallest scale
  scaler_underflow = 104,
  // precision
  precision_start = 120,
  precision_forced = 121,
  precision_lowered = 122,
  precision_raised = 123,
  precision_overflow = 124,
  precision_not_faster = 125,
  precision_no_evidence = 126,
  precision_forbidden = 127,
  precision_requested = 128,  // by the program, while it runs
  precision_straggler = 129,
  // accumulation
  accumulation_raised = 140,
  accumulation_lowered = 141,
  accumulation_kept = 142,
  accumulation_start = 143,
  // user code
  custom = 1000,
};
std::string_view to_string(ReasonCode code);

// Forecast is a policy's prediction about a change, if it can make one. Unknown stays unknown.
struct Forecast {
  // The time of a step with the change, divided by the time without; times of a sample if the batch
  // changes. The 95 % interval follows from the measured noise of the policy's inputs. 0 = unknown.
  double step_ratio = 0;
  double step_ratio_low = 0;
  double step_ratio_high = 0;
  std::int64_t peak_bytes = 0;  // highest memory peak of a rank with the change; 0 = unknown

  // Returns whether the change is made to shorten the step, so that a measurement can refute the
  // promise.
  bool promises_time() const { return step_ratio > 0 && step_ratio < 1; }

  static auto fields(auto& self) {
    return message("Forecast", field(1, "step_ratio", self.step_ratio),
                   field(2, "step_ratio_low", self.step_ratio_low),
                   field(3, "step_ratio_high", self.step_ratio_high),
                   field(4, "peak_bytes", self.peak_bytes));
  }
  friend bool operator==(const Forecast&, const Forecast&) = default;
};

// Returns a forecast of time with an interval from the deviation of the ratio. REQUIRES: `ratio` is
// positive, `deviation` is not negative. A deviation of 0 is unknown, and so is the interval.
inline Forecast forecast_of_time(double ratio, double deviation) {
  Forecast forecast;
  forecast.step_ratio = ratio;
  if (!(deviation > 0)) return forecast;
  constexpr double kDeviations = 1.96;
  forecast.step_ratio_low = std::max(ratio - kDeviations * deviation, 0.01 * ratio);
  forecast.step_ratio_high = ratio + kDeviations * deviation;
  return forecast;
}

struct Reason {
  PolicyKind policy = PolicyKind::none;
  ReasonCode code = ReasonCode::unspecified;
  Outcome outcome = Outcome::unspecified;
  RoundId round{};
  RankId rank{-1};          // the rank concerned; -1 = all or none
  std::int32_t block = -1;  // the block concerned; -1 = all or none
  std::string text;         // a sentence with numbers, for people
  Forecast forecast{};

  static auto fields(auto& self) {
    return message("Reason", field(1, "policy", self.policy), field(2, "code", self.code),
                   field(3, "outcome", self.outcome), field(4, "round", self.round),
                   field(5, "rank", self.rank), field(6, "block", self.block),
                   field(7, "text", self.text), field(8, "forecast", self.forecast));
  }
  friend bool operator==(const Reason&, const Reason&) = default;
};

// Returns a reason without the fields that Decide fills in: policy, round, and an unspecified
// outcome (for a finding: reported).
inline Reason reason_of(ReasonCode code, std::string text, Outcome outcome = Outcome::unspecified,
                        RankId rank = RankId(-1)) {
  return {.code = code, .outcome = outcome, .rank = rank, .text = std::move(text)};
}

// Accepts any value when it reads a code, because policies of users have codes of their own.
template <>
inline constexpr PolicyKind kLargestOf<PolicyKind> = static_cast<PolicyKind>(0xFF);
template <>
inline constexpr Outcome kLargestOf<Outcome> = static_cast<Outcome>(0xFF);
template <>
inline constexpr ReasonCode kLargestOf<ReasonCode> = static_cast<ReasonCode>(0xFFFF);
template <>
inline constexpr std::string_view kNameOf<PolicyKind> = "PolicyKind";
template <>
inline constexpr std::string_view kNameOf<Outcome> = "Outcome";
template <>
inline constexpr std::string_view kNameOf<ReasonCode> = "ReasonCode";

}  // namespace cox
