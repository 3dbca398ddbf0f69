#include "coordinator/policies/guard/guard.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/core/selection.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::size_t kMinHistory = 8;
constexpr std::uint64_t kLastHoldRound = std::uint64_t{1} << 50;  // later ones are invalid

// The strongest action that the guard asks for.
enum class GuardStage : std::uint8_t { watch = 0, hold = 1, roll_back = 2 };

}  // namespace

template <>
inline constexpr GuardStage kLargestOf<GuardStage> = GuardStage::roll_back;

namespace {

struct GuardState {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t nonfinite_streak = 0;  // rounds
  std::uint32_t spike_streak = 0;      // rounds
  std::uint32_t clean_streak = 0;      // rounds since the last bad one
  RoundId bad_since{};                 // round in which the running streak began
  bool announced = false;              // trouble was reported and is not over
  bool acted = false;                  // a hold or a rollback was requested since `bad_since`
  GuardStage stage = GuardStage::watch;
  RoundId hold_until{};         // first round after the requested hold
  std::uint32_t ticket = 0;     // the plan's rollback ticket when a rollback was first requested
  bool limit_reported = false;  // the limit of rollbacks was reported since the trouble began
  bool waiting = false;         // the ordered rollback is not applied yet

  static auto fields(auto& self) {
    return message(
        "GuardState", field(1, "nonfinite_streak", self.nonfinite_streak),
        field(2, "spike_streak", self.spike_streak), field(3, "clean_streak", self.clean_streak),
        field(4, "bad_since", self.bad_since), field(5, "announced", self.announced),
        field(6, "acted", self.acted), field(7, "stage", self.stage),
        field(8, "hold_until", self.hold_until), field(9, "ticket", self.ticket),
        field(10, "limit_reported", self.limit_reported), field(11, "waiting", self.waiting));
  }
};

// A restored state may hold any numbers.
GuardState believed(GuardState state) {
  const bool is_sane =
      state.bad_since.value() <= kLastHoldRound && state.hold_until.value() <= kLastHoldRound;
  return is_sane ? state : GuardState{};
}

// The usual loss and its spread. count = 0 means that too few rounds are known.
struct LossCourse {
  std::size_t count = 0;
  double median = 0;
  double deviation = 0;  // robust estimate of the standard deviation
  double largest = 0;
};

// The guard's judgement of one round.
struct Judged {
  GuardState state;
  LossCourse course;
  std::vector<Reason> findings;
};

bool has_loss(const RoundFacts& facts) {
  return facts.nonfinite_ranks == 0 && std::isfinite(facts.loss);
}

// Calls visit(loss) for the losses of the window, newest first, without the last `skip` rounds,
// until visit() returns false.
template <class Visit>
void for_each_loss(const History& history, std::size_t window, std::size_t skip, Visit visit) {
  const std::span<const RoundFacts> rounds = history.rounds();
  for (std::size_t back = skip; back < rounds.size() && window > 0; ++back) {
    const RoundFacts& facts = rounds[rounds.size() - 1 - back];
    if (!has_loss(facts)) continue;
    if (!visit(facts.loss)) return;
    --window;
  }
}

// Returns whether most losses of the window are so large that their median alone rules out a spike.
// True in nearly every round, and known after half of the window.
bool is_usual(double loss, const History& history, const GuardConfig& config, std::size_t skip) {
  if (!(loss > 0)) return false;
  const double enough = loss / config.spike_ratio;
  std::size_t large = 0;
  for_each_loss(history, config.window_rounds, skip, [&](double before) {
    large += before >= enough;
    return 2 * large <= config.window_rounds;
  });
  return 2 * large > config.window_rounds;
}

// Leaves out the last `skip` rounds.
LossCourse course_of(const History& history, std::size_t window, std::size_t skip) {
  std::vector<double> losses;
  losses.reserve(window);
  for_each_loss(history, window, skip, [&losses](double loss) {
    losses.push_back(loss);
    return true;
  });
  if (losses.size() < std::min(window, kMinHistory)) return {};
  LossCourse course;
  course.count = losses.size();
  course.median = median_of(losses);
  course.largest = *std::ranges::max_element(losses);
  for (double& loss : losses) loss = std::fabs(loss - course.median);
  course.deviation = 1.4826 * median_of(losses);
  return course;
}

// Returns the loss that a spike exceeds, whatever the deviation. If most losses are equal, such as
// zero, the median is no guide, and the largest loss of the window counts as usual.
double usual_limit(const LossCourse& course, double ratio) {
  if (course.median > 0) return ratio * course.median;
  if (course.deviation > 0) return course.median;
  const double above_median = course.median + (ratio - 1) * std::fabs(course.median);
  return std::max(above_median, ratio * course.largest);
}

bool is_spike(double loss, const LossCourse& course, const GuardConfig& config) {
  if (course.count == 0 || !std::isfinite(loss)) return false;
  const bool far = loss > course.median + config.spike_sigmas * course.deviation;
  return far && loss > usual_limit(course, config.spike_ratio);
}

Reason explain_nonfinite(const StepSummary& summary) {
  const RankId first = summary.first_nonfinite_rank;
  return reason_of(
      ReasonCode::nonfinite_step,
      concat(summary.nonfinite_ranks, " of ", summary.reporting,
             " ranks report a loss or gradient that is not finite, rank ", first, " first"),
      {}, first);
}

Reason explain_recovery(const GuardState& state, const StepSummary& summary) {
  return reason_of(
      ReasonCode::guard_recovered,
      concat("loss ", general(summary.loss, 4), ": ", state.clean_streak,
             " clean rounds in a row, the trouble of round ", state.bad_since, " is over"));
}

Reason explain_trouble(const Judged& judged, const StepSummary& summary) {
  const GuardState& state = judged.state;
  if (state.nonfinite_streak > 0 || judged.course.count == 0) {
    return reason_of(ReasonCode::nonfinite_streak,
                     concat(state.nonfinite_streak, " rounds in a row not finite, since round ",
                            state.bad_since),
                     {}, summary.first_nonfinite_rank);
  }
  return reason_of(ReasonCode::loss_spike,
                   concat("loss ", general(summary.loss, 4), " since round ", state.bad_since,
                          ", usual is ", general(judged.course.median, 4), " (spread ",
                          general(judged.course.deviation, 2), ")"));
}

// Once the plan has the order, the count starts anew when all ranks apply the plan.
GuardState after_orders(const PolicyInput& input, GuardState state) {
  if (state.stage == GuardStage::roll_back && input.plan.rollback.ticket > state.ticket) {
    state.stage = GuardStage::watch;
    state.nonfinite_streak = state.spike_streak = 0;
    state.waiting = true;
  }
  if (input.summary.plan_applied_max >= input.plan.id.number) state.waiting = false;
  return state;
}

// Trouble that led to an action keeps its first round until the trouble is over, because later
// snapshots are suspect.
void begin_streak(GuardState& state, RoundId round) {
  const bool begins = state.nonfinite_streak == 0 && state.spike_streak == 0 && !state.acted;
  if (begins) state.bad_since = round;
  state.clean_streak = 0;
}

Judged judge_nonfinite(const PolicyInput& input, Judged judged) {
  begin_streak(judged.state, input.summary.round);
  ++judged.state.nonfinite_streak;
  if (!std::exchange(judged.state.announced, true)) {
    judged.findings.push_back(explain_nonfinite(input.summary));
  }
  return judged;
}

Judged judge_clean(const PolicyInput& input, Judged judged) {
  GuardState& state = judged.state;
  state.spike_streak = 0;
  if (++state.clean_streak < input.config.guard.nonfinite_streak) return judged;
  if (state.acted) judged.findings.push_back(explain_recovery(state, input.summary));
  state.announced = state.acted = state.limit_reported = false;
  state.stage = GuardStage::watch;
  return judged;
}

Judged judge_round(const PolicyInput& input, GuardState before) {
  Judged judged{after_orders(input, before), {}, {}};
  GuardState& state = judged.state;
  const StepSummary& summary = input.summary;
  if (state.waiting) return judged;
  if (summary.nonfinite_ranks > 0) return judge_nonfinite(input, std::move(judged));
  if (!std::isfinite(summary.loss)) return judged;
  state.nonfinite_streak = 0;
  const GuardConfig& config = input.config.guard;
  // Leave out only the young spike, so that a new plateau becomes the usual loss in time.
  const auto skip = std::min<std::size_t>(state.spike_streak, config.spike_rounds);
  if (is_usual(summary.loss, input.history, config, skip)) {
    return judge_clean(input, std::move(judged));
  }
  judged.course = course_of(input.history, config.window_rounds, skip);
  if (!is_spike(summary.loss, judged.course, config)) return judge_clean(input, std::move(judged));
  begin_streak(state, summary.round);
  ++state.spike_streak;
  return judged;
}

GuardState with_stage(const PolicyInput& input, GuardState state) {
  const GuardConfig& config = input.config.guard;
  const bool spikes = state.spike_streak >= config.spike_rounds;
  const bool streak = state.nonfinite_streak >= config.nonfinite_streak;
  if (!spikes && !streak) return state;
  const bool back = spikes || state.nonfinite_streak >= 2 * config.nonfinite_streak;
  if (back && state.stage != GuardStage::roll_back) state.ticket = input.plan.rollback.ticket;
  state.stage = std::max(state.stage, back ? GuardStage::roll_back : GuardStage::hold);
  state.announced = state.acted = true;
  const std::uint64_t now = input.summary.round.value();
  const bool ends_soon = state.hold_until.value() < now + config.hold_rounds / 2;
  if (ends_soon) state.hold_until = RoundId(now + config.hold_rounds);
  return state;
}

void propose_rollback(const PolicyInput& input, Judged& judged, PolicyOutput& output) {
  if (!input.job.capabilities.rollback) return;
  const GuardConfig& config = input.config.guard;
  GuardState& state = judged.state;
  Reason why = explain_trouble(judged, input.summary);
  if (input.plan.rollback.ticket >= config.max_rollbacks) {
    if (std::exchange(state.limit_reported, true)) return;
    why.code = ReasonCode::rollback_limit;
    why.text += concat("; no rollback: ", input.plan.rollback.ticket, " of ", config.max_rollbacks,
                       " are used up");
    output.findings.push_back(std::move(why));
    return;
  }
  why.text += concat("; going back to before round ", state.bad_since);
  output.proposals.push_back({RollBack{state.bad_since}, std::move(why)});
}

PolicyOutput proposals_of(const PolicyInput& input, Judged judged) {
  PolicyOutput output;
  output.findings = std::move(judged.findings);
  GuardState& state = judged.state;
  const bool bad = state.nonfinite_streak > 0 || state.spike_streak > 0;
  if (bad && state.stage != GuardStage::watch) {
    if (state.hold_until > input.plan.hold_until && input.config.guard.hold_rounds > 0) {
      Reason why = explain_trouble(judged, input.summary);
      why.text += concat("; knobs rest until round ", state.hold_until);
      output.proposals.push_back({HoldUntil{state.hold_until}, std::move(why)});
    }
    if (state.stage == GuardStage::roll_back) propose_rollback(input, judged, output);
  }
  output.state = PolicyState::of(state);
  return output;
}

}  // namespace

PolicyOutput Guard::propose(const PolicyInput& input, PolicyState state) const {
  if (input.summary.reporting == 0) return {{}, {}, std::move(state)};
  Judged judged = judge_round(input, believed(state.take_or_fresh<GuardState>()));
  judged.state = with_stage(input, judged.state);
  return proposals_of(input, std::move(judged));
}

}  // namespace cox
