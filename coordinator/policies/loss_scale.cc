#include "coordinator/policies/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "coordinator/core/portable_math.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/loss_scale_notes.h"

namespace cox {
namespace {

constexpr double kLargestHalf = 65504;
constexpr double kRoundsToAct = 2;    // with evidence, before the rules change
constexpr double kRoundsAtFloor = 3;  // before that is told
constexpr double kQuietSteps = 32;    // between two incidents
constexpr double kHurry = 64;         // times shorter is the growth interval
constexpr double kMostDistrust = 6;   // doublings of the patience
constexpr double kMostIncidents = 4;  // doublings of the growth interval, + 1
constexpr double kForgetIntervals = 4;
constexpr double kLn2 = 0.693147180559945309;

Reason say(ReasonCode code, std::string text) {
  Reason reason;
  reason.code = code;
  reason.text = std::move(text);
  return reason;
}

// Not of blocks that the job does not have, whatever a journal says.
std::span<const BlockEvidence> of_blocks(const PolicyInput& input) {
  const std::span<const BlockEvidence> all = input.signals.evidence;
  return all.first(std::min({all.size(), input.job.blocks.size(), input.plan.precision.size()}));
}

// One look at one round.
class Look {
 public:
  Look(const PolicyInput& input, LossScaleNotes& notes)
      : input_(input),
        notes_(notes),
        now_(notes.now),
        rules_(input.config.loss_scale.rules),
        evidence_(of_blocks(input)) {}

  PolicyOutput run() && {
    if (input_.summary.reporting > 0) {
      look();
      name_blocks();
      name_outside();
      if (is_scaling_) {
        count_steps();
        learn_gradients();
        judge_underflow();
        if (!is_at_floor()) propose();
      }
    }
    output_.state = notes_.state();
    return std::move(output_);
  }

 private:
  void look() {
    const auto& formats = input_.plan.precision;
    const bool has_half =
        std::find(formats.begin(), formats.end(), Precision::fp16) != formats.end();
    const StepSummary& summary = input_.summary;
    const bool is_quiet = !has_half && summary.nonfinite_ranks == 0 && summary.skipped_ranks == 0;
    for (const RankSignal& report : input_.signals.reports) {
      if (is_quiet) break;  // thousands of reports need not be read for nothing
      const bool is_bad = report.nonfinite_values > 0 || report.has(SignalFlag::nonfinite_gradient);
      if (is_bad && bad_rank_.value() < 0) bad_rank_ = report.rank;
      if (!(report.loss_scale > 0)) continue;
      scale_ = scale_ == 0 ? report.loss_scale : std::min<double>(scale_, report.loss_scale);
    }
    is_scaling_ = has_half && scale_ > 0;
    for (std::size_t b = 0; b < evidence_.size(); ++b) {
      const bool overflows = evidence_[b].has_overflow();
      if (overflows && blamed_ < 0) blamed_ = static_cast<std::int32_t>(b);
    }
  }

  std::string scale_text() const {
    return is_scaling_ ? sentence(", loss scale %.6g", scale_) : std::string();
  }

  void name_blocks() {
    for (std::size_t b = 0; b < evidence_.size(); ++b) {
      const BlockEvidence& seen = evidence_[b];
      if (!seen.has_overflow()) {
        notes_.quiet[b] = std::max(notes_.quiet[b] - 1, 0.0);
        continue;
      }
      if (std::exchange(notes_.quiet[b], LossScalePolicy::kQuietRounds) > 0) continue;
      const bool forward = seen.overflow_forward > 0;
      Reason reason =
          say(ReasonCode::overflow_named,
              "block " + input_.job.blocks[b] +
                  sentence(" overflowed in its %s pass on rank %d: %u values not finite, in ",
                           forward ? "forward" : "backward", seen.rank_of_overflow.value(),
                           forward ? seen.overflow_forward : seen.overflow_backward) +
                  std::string(to_string(input_.plan.precision[b])) + scale_text());
      reason.rank = seen.rank_of_overflow;
      reason.block = static_cast<std::int32_t>(b);
      output_.findings.push_back(std::move(reason));
    }
  }

  void name_outside() {
    if (bad_rank_.value() < 0 || blamed_ >= 0) {
      now_.outside_quiet = std::max(now_.outside_quiet - 1, 0.0);
      return;
    }
    if (std::exchange(now_.outside_quiet, LossScalePolicy::kQuietRounds) > 0) return;
    Reason reason =
        say(ReasonCode::overflow_outside,
            sentence("gradients of rank %d are not finite, and no block is to blame: it "
                     "arose outside of all blocks, in the loss or in the data",
                     bad_rank_.value()) +
                scale_text());
    reason.rank = bad_rank_;
    output_.findings.push_back(std::move(reason));
  }

  bool overflows() const { return bad_rank_.value() >= 0 || blamed_ >= 0; }

  void count_steps() {
    const double steps = std::max<double>(1, input_.summary.rounds);
    now_.since_incident = std::min(now_.since_incident + steps, 1e9);
    if (overflows()) {
      if (now_.quiet_steps >= kQuietSteps || now_.incidents == 0) {
        now_.incidents = std::min(now_.incidents + 1, kMostIncidents);
        now_.since_incident = 0;
        if (now_.hurry != 0) now_.distrust = std::min(now_.distrust + 1, kMostDistrust);
      }
      now_.quiet_steps = now_.hurry = now_.high_rounds = 0;
      return;
    }
    now_.quiet_steps = std::min(now_.quiet_steps + steps, 1e9);
    const double interval = input_.plan.scaler.growth_interval;
    if (now_.incidents > 0 && now_.since_incident > kForgetIntervals * interval) {
      --now_.incidents;
      now_.since_incident = 0;
    }
  }

  // Of blocks in fp16. Halved once an interval, so that it forgets.
  void learn_gradients() {
    const double steps = std::max<double>(1, input_.summary.rounds);
    now_.largest *= portable_exp(-kLn2 * steps / rules_.growth_interval);
    for (std::size_t b = 0; b < evidence_.size(); ++b) {
      const BlockEvidence& seen = evidence_[b];
      if (input_.plan.precision[b] != Precision::fp16) continue;
      sampled_ += seen.sampled;
      underflow_ += seen.underflow;
      const float size = seen.gradient.value;
      if (seen.gradient.rank.value() < 0 || !std::isfinite(size)) continue;
      now_.largest = std::max<double>(now_.largest, size);
    }
  }

  // The largest scale that leaves the headroom, by what was seen; 0 = not known.
  double allowed() const {
    if (!(now_.largest > 0)) return 0;
    const double most = std::ldexp(kLargestHalf, -static_cast<int>(rules_.headroom_bits));
    return std::min<double>(most / now_.largest, rules_.max_scale);
  }

  void judge_underflow() {
    if (sampled_ == 0) return;
    const PrecisionConfig& bands = input_.config.precision;
    part_ = underflow_ / sampled_;
    const bool has_room = allowed() == 0 || scale_ * 4 <= allowed();
    const bool is_high =
        part_ > bands.enter_underflow_ratio / 2 && has_room && scale_ < rules_.max_scale;
    const bool is_low = part_ <= bands.enter_underflow_ratio / 4 || !has_room;
    now_.high_rounds = is_high ? now_.high_rounds + 1 : 0;
    now_.low_rounds = is_low ? now_.low_rounds + 1 : 0;
    if (now_.high_rounds >= kRoundsToAct * std::exp2(now_.distrust)) now_.hurry = 1;
    if (now_.low_rounds >= kRoundsToAct) now_.hurry = 0;
  }

  bool is_at_floor() {
    const bool low = scale_ <= static_cast<double>(rules_.min_scale) * 1.0001;
    if (!low || !overflows()) {
      now_.floor_rounds = 0;
      return false;
    }
    now_.floor_rounds = std::min(now_.floor_rounds + 1, 1e6);
    if (now_.floor_rounds == kRoundsAtFloor) tell_floor();
    return now_.floor_rounds >= kRoundsAtFloor;
  }

  void tell_floor() {
    std::string where = "outside of all blocks";
    Reason reason = say(ReasonCode::scaler_floor, {});
    reason.rank = bad_rank_;
    if (blamed_ >= 0) {
      const auto block = static_cast<std::size_t>(blamed_);
      const BlockEvidence& seen = evidence_[block];
      reason.block = blamed_;
      reason.rank = seen.rank_of_overflow;
      where = "in the " + std::string(seen.overflow_forward > 0 ? "forward" : "backward") +
              " pass of block " + input_.job.blocks[block];
    }
    reason.text = sentence("overflows go on at the smallest loss scale, %.6g, ", scale_) + where +
                  sentence(
                      " on rank %d: no scale helps, so it stays; look at that block's inputs, "
                      "or force another format on it",
                      reason.rank.value());
    output_.findings.push_back(std::move(reason));
  }

  void propose() {
    ScalerRules wanted = rules_;
    Reason why = say(ReasonCode::scaler_rules, {});
    if (now_.hurry != 0) {
      const double interval = std::max(8.0, rules_.growth_interval / kHurry);
      wanted.growth_interval =
          std::min(rules_.growth_interval, static_cast<std::uint32_t>(interval));
      if (now_.incidents >= 2) stay_near_held(wanted);
      why.code = ReasonCode::scaler_underflow;
      why.text = sentence(
          "%.2g %% of the gradients in fp16 become zero at scale %.6g, and %s: the "
          "scale may grow after %u clean steps instead of %u",
          100 * part_, scale_, room_text().c_str(), wanted.growth_interval, rules_.growth_interval);
    } else if (now_.incidents >= 2) {
      const double longer = rules_.growth_interval * std::exp2(now_.incidents - 1);
      wanted.growth_interval = static_cast<std::uint32_t>(std::min(longer, 1e9));
      cap(wanted);
      stay_near_held(wanted);
      why.text = sentence(
          "%.0f overflows not long after each other: the scale may grow after %u "
          "clean steps instead of %u, up to %.6g",
          now_.incidents, wanted.growth_interval, rules_.growth_interval,
          static_cast<double>(wanted.max_scale));
    } else {
      why.text =
          sentence("the scale may grow after %u clean steps, up to %.6g, as the settings say",
                   rules_.growth_interval, static_cast<double>(rules_.max_scale));
    }
    if (wanted == input_.plan.scaler) return;
    Proposal& proposal = output_.proposals.emplace_back();
    proposal.change = SetScaler{wanted};
    proposal.reason = std::move(why);
  }

  std::string room_text() const {
    if (allowed() == 0) return "nothing larger was seen";
    return sentence("the largest, %.3g, allow %.6g", now_.largest, allowed());
  }

  void cap(ScalerRules& wanted) const {
    if (allowed() == 0) return;
    int exponent = 0;
    std::frexp(allowed(), &exponent);
    const double power = std::ldexp(1.0, exponent - 1);  // the largest of two that is not above
    const double least = std::max(rules_.min_scale, rules_.initial_scale * 0x1p-16f);
    wanted.max_scale = static_cast<float>(
        std::clamp<double>(power, std::min<double>(least, rules_.max_scale), rules_.max_scale));
    wanted.initial_scale = std::clamp(wanted.initial_scale, wanted.min_scale, wanted.max_scale);
  }

  // A cap that follows the gradients must not make a plan of every wiggle.
  void stay_near_held(ScalerRules& wanted) const {
    const ScalerRules& held = input_.plan.scaler;
    const bool is_near =
        wanted.max_scale <= held.max_scale * 4 && held.max_scale <= wanted.max_scale * 4;
    const bool is_allowed =
        held.max_scale >= rules_.min_scale && held.max_scale <= rules_.max_scale;
    if (!is_near || !is_allowed) return;
    wanted.max_scale = held.max_scale;
    wanted.initial_scale = std::clamp(held.initial_scale, wanted.min_scale, wanted.max_scale);
  }

  const PolicyInput& input_;
  LossScaleNotes& notes_;
  LossScaleNotes::Numbers& now_;
  const ScalerRules& rules_;  // of the settings
  const std::span<const BlockEvidence> evidence_;
  PolicyOutput output_;
  RankId bad_rank_{-1};       // lowest with gradients that are not finite
  std::int32_t blamed_ = -1;  // first block with an overflow
  double scale_ = 0;          // smallest reported
  bool is_scaling_ = false;
  double sampled_ = 0;
  double underflow_ = 0;
  double part_ = 0;
};

}  // namespace

PolicyOutput LossScalePolicy::propose(const PolicyInput& input, PolicyState state) const {
  LossScaleNotes notes(state.take_or_fresh<NumbersState>(), input.job.blocks.size());
  return Look(input, notes).run();
}

}  // namespace cox
