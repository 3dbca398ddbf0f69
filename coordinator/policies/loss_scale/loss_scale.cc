#include "coordinator/policies/loss_scale/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/core/state_codec.h"
#include "coordinator/core/text.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kLargestHalf = 65504;
constexpr std::uint32_t kRoundsToAct = 2;    // in a row with evidence, before the rules change
constexpr std::uint32_t kRoundsAtFloor = 3;  // before overflows at the smallest scale are reported
constexpr std::uint32_t kQuietSteps = 32;    // between two incidents
constexpr double kHurry = 64;                // divides the growth interval
constexpr std::uint32_t kMostDistrust = 6;   // doublings of the patience
constexpr std::uint32_t kMostIncidents = 4;  // doublings of the growth interval, + 1
constexpr double kForgetIntervals = 4;
constexpr double kLn2 = 0.693147180559945309;
constexpr std::uint32_t kLongTime = 1'000'000'000;  // counts of steps or rounds saturate here

struct LossScaleState {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t outside_quiet = 0;     // rounds until an overflow outside of blocks is named again
  std::uint32_t quiet_steps = 0;       // since the last overflow
  std::uint32_t incidents = 0;         // overflows after some quiet; one is forgotten at a time
  std::uint32_t since_incident = 0;    // steps since the last incident was counted or forgotten
  std::uint32_t high_rounds = 0;       // with evidence, in a row: much underflow and room above
  std::uint32_t low_rounds = 0;        // with evidence, in a row: little underflow, or no room
  bool hurries = false;                // the growth interval is short
  std::uint32_t distrust = 0;          // times that a short growth interval ended in an overflow
  std::uint32_t floor_rounds = 0;      // in a row with overflows at the smallest scale
  double largest_gradient = 0;         // largest gradient seen, slowly forgotten
  std::vector<std::uint32_t> quiet{};  // per block: rounds until its overflow is named again

  static auto fields(auto& self) {
    return message(
        "LossScaleState", field(1, "outside_quiet", self.outside_quiet),
        field(2, "quiet_steps", self.quiet_steps), field(3, "incidents", self.incidents),
        field(4, "since_incident", self.since_incident), field(5, "high_rounds", self.high_rounds),
        field(6, "low_rounds", self.low_rounds), field(7, "hurries", self.hurries),
        field(8, "distrust", self.distrust), field(9, "floor_rounds", self.floor_rounds),
        field(10, "largest_gradient", self.largest_gradient), field(11, "quiet", self.quiet));
  }
};

// A restored state may belong to another job, and may hold any numbers.
LossScaleState believed(LossScaleState state, std::size_t blocks) {
  const bool is_sane = state.largest_gradient >= 0 && state.largest_gradient <= 1e38 &&
                       state.incidents <= kMostIncidents && state.distrust <= kMostDistrust;
  if (is_sane && state.quiet.size() == blocks) return state;
  LossScaleState fresh;
  fresh.quiet.resize(blocks);
  return fresh;
}

std::uint32_t added(std::uint32_t count, std::uint32_t more) {
  return std::min(kLongTime, add_saturating(count, more));
}

// The overflows and the active scale of one round.
struct RoundView {
  std::span<const BlockEvidence> evidence;  // of the job's blocks; a journal may hold more
  RankId bad_rank{-1};                      // lowest rank with gradients that are not finite
  std::int32_t blamed = -1;                 // first block with an overflow
  double scale = 0;                         // smallest reported
  bool is_scaling = false;
  bool overflows() const { return bad_rank.value() >= 0 || blamed >= 0; }
};

RoundView view_of(const PolicyInput& input) {
  RoundView view;
  const auto& formats = input.plan.precision;
  const std::span<const BlockEvidence> all = input.signals.evidence;
  view.evidence = all.first(std::min({all.size(), input.job.blocks.size(), formats.size()}));
  const bool has_half = std::ranges::find(formats, Precision::fp16) != formats.end();
  const StepSummary& summary = input.summary;
  const bool is_quiet = !has_half && summary.nonfinite_ranks == 0 && summary.skipped_ranks == 0;
  for (const RankSignal& report : input.signals.reports) {
    if (is_quiet) break;  // do not read thousands of reports in a quiet round
    const bool is_bad = report.nonfinite_values > 0 || report.has(SignalFlag::nonfinite_gradient);
    if (is_bad && view.bad_rank.value() < 0) view.bad_rank = report.rank;
    if (!(report.loss_scale > 0)) continue;
    view.scale =
        view.scale == 0 ? report.loss_scale : std::min<double>(view.scale, report.loss_scale);
  }
  view.is_scaling = has_half && view.scale > 0;
  for (std::size_t b = 0; b < view.evidence.size() && view.blamed < 0; ++b) {
    if (view.evidence[b].has_overflow()) view.blamed = static_cast<std::int32_t>(b);
  }
  return view;
}

std::string explain_scale(const RoundView& view) {
  return view.is_scaling ? concat(", loss scale ", general(view.scale, 6)) : std::string();
}

const char* pass_of(const BlockEvidence& seen) {
  return seen.overflow_forward > 0 ? "forward" : "backward";
}

Reason explain_block(const PolicyInput& input, const RoundView& view, std::size_t block) {
  const BlockEvidence& seen = view.evidence[block];
  const std::uint32_t values =
      seen.overflow_forward > 0 ? seen.overflow_forward : seen.overflow_backward;
  Reason reason =
      reason_of(ReasonCode::overflow_named,
                concat("block ", input.job.blocks[block], " overflowed in its ", pass_of(seen),
                       " pass on rank ", seen.rank_of_overflow, ": ", values,
                       " values not finite, in ", input.plan.precision[block], explain_scale(view)),
                {}, seen.rank_of_overflow);
  reason.block = static_cast<std::int32_t>(block);
  return reason;
}

Reason explain_outside(const RoundView& view) {
  return reason_of(ReasonCode::overflow_outside,
                   concat("gradients of rank ", view.bad_rank,
                          " are not finite, and all blocks were finite: the cause is outside of "
                          "all blocks, in the loss or in the data",
                          explain_scale(view)),
                   {}, view.bad_rank);
}

Reason explain_floor(const PolicyInput& input, const RoundView& view) {
  std::string where = "outside of all blocks";
  RankId rank = view.bad_rank;
  if (view.blamed >= 0) {
    const auto block = static_cast<std::size_t>(view.blamed);
    const BlockEvidence& seen = view.evidence[block];
    rank = seen.rank_of_overflow;
    where = concat("in the ", pass_of(seen), " pass of block ", input.job.blocks[block]);
  }
  Reason reason = reason_of(ReasonCode::scaler_floor,
                            concat("overflows go on at the smallest loss scale, ",
                                   general(view.scale, 6), ", ", where, " on rank ", rank,
                                   ": no scale helps, so the scale stays; check the inputs of that "
                                   "block, or force another format on it"),
                            {}, rank);
  reason.block = view.blamed;
  return reason;
}

// Names the source of overflows, unless the source was named a short time ago.
void name_overflows(const PolicyInput& input, const RoundView& view, LossScaleState& state,
                    std::vector<Reason>& findings) {
  const auto is_news = [](std::uint32_t& quiet, bool overflows) {
    if (overflows) return std::exchange(quiet, LossScalePolicy::kQuietRounds) == 0;
    quiet -= quiet > 0;
    return false;
  };
  for (std::size_t b = 0; b < view.evidence.size(); ++b) {
    if (is_news(state.quiet[b], view.evidence[b].has_overflow())) {
      findings.push_back(explain_block(input, view, b));
    }
  }
  const bool is_outside = view.bad_rank.value() >= 0 && view.blamed < 0;
  if (is_news(state.outside_quiet, is_outside)) findings.push_back(explain_outside(view));
}

LossScaleState with_overflow(LossScaleState state) {
  if (state.quiet_steps >= kQuietSteps || state.incidents == 0) {
    state.incidents = std::min(state.incidents + 1, kMostIncidents);
    state.since_incident = 0;
    if (state.hurries) state.distrust = std::min(state.distrust + 1, kMostDistrust);
  }
  state.quiet_steps = state.high_rounds = 0;
  state.hurries = false;
  return state;
}

LossScaleState with_steps(const PolicyInput& input, const RoundView& view, LossScaleState state) {
  const std::uint32_t steps = std::max<std::uint32_t>(1, input.summary.rounds);
  state.since_incident = added(state.since_incident, steps);
  if (view.overflows()) return with_overflow(std::move(state));
  state.quiet_steps = added(state.quiet_steps, steps);
  const double interval = input.plan.scaler.growth_interval;
  if (state.incidents > 0 && state.since_incident > kForgetIntervals * interval) {
    --state.incidents;
    state.since_incident = 0;
  }
  return state;
}

// The gradients of all blocks in fp16.
struct HalfGradients {
  double largest = 0;
  double sampled = 0;
  double underflow = 0;
  double underflow_part() const { return sampled > 0 ? underflow / sampled : 0; }
};

HalfGradients half_gradients(const PolicyInput& input, const RoundView& view) {
  HalfGradients gradients;
  for (std::size_t b = 0; b < view.evidence.size(); ++b) {
    const BlockEvidence& seen = view.evidence[b];
    if (input.plan.precision[b] != Precision::fp16) continue;
    gradients.sampled += seen.sampled;
    gradients.underflow += seen.underflow;
    const float size = seen.gradient.value;
    if (seen.gradient.rank.value() < 0 || !std::isfinite(size)) continue;
    gradients.largest = std::max<double>(gradients.largest, size);
  }
  return gradients;
}

// Returns the largest scale that leaves the headroom for the gradients seen. 0 = not known.
double allowed_scale(const LossScaleState& state, const ScalerRules& rules) {
  if (!(state.largest_gradient > 0)) return 0;
  const double most = std::ldexp(kLargestHalf, -static_cast<int>(rules.headroom_bits));
  return std::min<double>(most / state.largest_gradient, rules.max_scale);
}

// Halves the largest gradient once an interval, so that old gradients are forgotten.
LossScaleState with_gradients(const PolicyInput& input, const RoundView& view,
                              const HalfGradients& seen, LossScaleState state) {
  const ScalerRules& rules = input.config.loss_scale.rules;
  const double steps = std::max<double>(1, input.summary.rounds);
  state.largest_gradient *= portable_exp(-kLn2 * steps / rules.growth_interval);
  state.largest_gradient = std::max(state.largest_gradient, seen.largest);
  if (seen.sampled == 0) return state;
  const double enter = input.config.precision.enter_underflow_ratio;
  const double allowed = allowed_scale(state, rules);
  const bool has_room = allowed == 0 || view.scale * 4 <= allowed;
  const bool is_high =
      seen.underflow_part() > enter / 2 && has_room && view.scale < rules.max_scale;
  const bool is_low = seen.underflow_part() <= enter / 4 || !has_room;
  state.high_rounds = is_high ? added(state.high_rounds, 1) : 0;
  state.low_rounds = is_low ? added(state.low_rounds, 1) : 0;
  if (state.high_rounds >= kRoundsToAct << state.distrust) state.hurries = true;
  if (state.low_rounds >= kRoundsToAct) state.hurries = false;
  return state;
}

std::uint32_t floor_rounds(const PolicyInput& input, const RoundView& view,
                           const LossScaleState& state) {
  const double smallest = input.config.loss_scale.rules.min_scale;
  const bool is_low = view.scale <= smallest * 1.0001;
  return is_low && view.overflows() ? added(state.floor_rounds, 1) : 0;
}

// Returns `wanted` with a cap that follows the gradients seen, as a power of two.
ScalerRules capped(ScalerRules wanted, const LossScaleState& state, const ScalerRules& rules) {
  const double allowed = allowed_scale(state, rules);
  if (allowed == 0) return wanted;
  int exponent = 0;
  std::frexp(allowed, &exponent);
  const double power = std::ldexp(1.0, exponent - 1);  // the largest one not above `allowed`
  const double least = std::max(rules.min_scale, rules.initial_scale * 0x1p-16f);
  wanted.max_scale = static_cast<float>(
      std::clamp<double>(power, std::min<double>(least, rules.max_scale), rules.max_scale));
  wanted.initial_scale = std::clamp(wanted.initial_scale, wanted.min_scale, wanted.max_scale);
  return wanted;
}

// Keeps the held cap if the wanted one is within a factor of 4, so that small changes make no plan.
ScalerRules near_held(ScalerRules wanted, const ScalerRules& held, const ScalerRules& rules) {
  const bool is_near =
      wanted.max_scale <= held.max_scale * 4 && held.max_scale <= wanted.max_scale * 4;
  const bool is_allowed = held.max_scale >= rules.min_scale && held.max_scale <= rules.max_scale;
  if (!is_near || !is_allowed) return wanted;
  wanted.max_scale = held.max_scale;
  wanted.initial_scale = std::clamp(held.initial_scale, wanted.min_scale, wanted.max_scale);
  return wanted;
}

std::string explain_room(const LossScaleState& state, const ScalerRules& rules) {
  const double allowed = allowed_scale(state, rules);
  if (allowed == 0) return "nothing larger was seen";
  return concat("the largest, ", general(state.largest_gradient, 3), ", allow ",
                general(allowed, 6));
}

Proposal hurried(const PolicyInput& input, const RoundView& view, const LossScaleState& state,
                 double underflow_part) {
  const ScalerRules& rules = input.config.loss_scale.rules;
  ScalerRules wanted = rules;
  const double interval = std::max(8.0, rules.growth_interval / kHurry);
  wanted.growth_interval = std::min(rules.growth_interval, static_cast<std::uint32_t>(interval));
  if (state.incidents >= 2) wanted = near_held(wanted, input.plan.scaler, rules);
  return {
      SetScaler{wanted},
      reason_of(ReasonCode::scaler_underflow,
                concat(general(100 * underflow_part, 2),
                       " % of the gradients in fp16 become zero at scale ", general(view.scale, 6),
                       ", and ", explain_room(state, rules), ": the scale may grow after ",
                       wanted.growth_interval, " clean steps instead of ", rules.growth_interval))};
}

Proposal patient(const PolicyInput& input, const LossScaleState& state) {
  const ScalerRules& rules = input.config.loss_scale.rules;
  ScalerRules wanted = rules;
  const double longer =
      rules.growth_interval * std::ldexp(1.0, static_cast<int>(state.incidents) - 1);
  wanted.growth_interval = static_cast<std::uint32_t>(std::min(longer, 1e9));
  wanted = near_held(capped(wanted, state, rules), input.plan.scaler, rules);
  return {SetScaler{wanted},
          reason_of(ReasonCode::scaler_rules,
                    concat(state.incidents,
                           " overflows not long after each other: the scale may grow after ",
                           wanted.growth_interval, " clean steps instead of ",
                           rules.growth_interval, ", up to ", general(wanted.max_scale, 6)))};
}

Proposal by_settings(const ScalerRules& rules) {
  return {SetScaler{rules}, reason_of(ReasonCode::scaler_rules,
                                      concat("the scale may grow after ", rules.growth_interval,
                                             " clean steps, up to ", general(rules.max_scale, 6),
                                             ", as the settings say"))};
}

Proposal rules_for(const PolicyInput& input, const RoundView& view, const LossScaleState& state,
                   double underflow_part) {
  if (state.hurries) return hurried(input, view, state, underflow_part);
  if (state.incidents >= 2) return patient(input, state);
  return by_settings(input.config.loss_scale.rules);
}

}  // namespace

PolicyOutput LossScalePolicy::propose(const PolicyInput& input, PolicyState kept) const {
  if (input.summary.reporting == 0) return {{}, {}, std::move(kept)};
  PolicyOutput output;
  auto state = believed(kept.take_or_fresh<LossScaleState>(), input.job.blocks.size());
  const RoundView view = view_of(input);
  name_overflows(input, view, state, output.findings);
  if (view.is_scaling) {
    const HalfGradients seen = half_gradients(input, view);
    state = with_steps(input, view, std::move(state));
    state = with_gradients(input, view, seen, std::move(state));
    state.floor_rounds = floor_rounds(input, view, state);
    if (state.floor_rounds == kRoundsAtFloor) {
      output.findings.push_back(explain_floor(input, view));
    }
    if (state.floor_rounds < kRoundsAtFloor) {
      Proposal wanted = rules_for(input, view, state, seen.underflow_part());
      const bool is_news = wanted.change.to.scaler != input.plan.scaler;
      if (is_news) output.proposals.push_back(std::move(wanted));
    }
  }
  output.state = PolicyState::of(std::move(state));
  return output;
}

}  // namespace cox
