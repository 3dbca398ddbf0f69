#include "coordinator/policies/guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/selection.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMinHistory = 8;

// How far it wants to go.
enum class Stage { watch = 0, hold = 1, roll_back = 2 };

// What is remembered, in the order of NumbersState::values.
struct Memory {
  double nonfinite_streak = 0;  // rounds
  double spike_streak = 0;      // rounds
  double clean_streak = 0;      // rounds since the last bad one
  double bad_since = 0;         // round in which the running streak began
  double announced = 0;         // 1 = trouble was told and is not over
  double acted = 0;             // 1 = it wanted to hold or roll back since then
  double stage = 0;             // Stage
  double hold_until = 0;        // round wished for
  double ticket = 0;            // of the plan when a rollback was first wished for
  double limit_told = 0;        // 1 = the limit of rollbacks was told since the trouble began
  double waiting = 0;           // 1 = the ordered rollback is not applied yet
};
constexpr std::size_t kValues = sizeof(Memory) / sizeof(double);

Memory remember(const NumbersState& state) {
  if (state.version != kVersion || state.values.size() != kValues) return {};
  const auto& v = state.values;
  const auto sane = [](double value) { return value >= 0 && value < 1e15; };
  if (!std::all_of(v.begin(), v.end(), sane)) return {};
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10]};
}

PolicyState keep(const Memory& m) {
  return PolicyState::of(
      NumbersState{kVersion,
                   {m.nonfinite_streak, m.spike_streak, m.clean_streak, m.bad_since, m.announced,
                    m.acted, m.stage, m.hold_until, m.ticket, m.limit_told, m.waiting}});
}

Stage stage_of(const Memory& m) {
  return static_cast<Stage>(static_cast<int>(m.stage));
}

// The usual loss and its spread; count = 0 while too few rounds are known.
struct Course {
  std::size_t count = 0;
  double median = 0;
  double deviation = 0;  // robust estimate of the standard deviation
  double largest = 0;
};

// Without the last `skip` rounds.
Course course_of(const History& history, std::size_t window, std::size_t skip) {
  std::vector<double> losses;
  const auto& rounds = history.rounds();
  for (std::size_t back = skip; back < rounds.size() && losses.size() < window; ++back) {
    const RoundFacts& facts = rounds[rounds.size() - 1 - back];
    if (facts.nonfinite_ranks == 0 && std::isfinite(facts.loss)) losses.push_back(facts.loss);
  }
  if (losses.size() < std::min(window, kMinHistory)) return {};
  Course course;
  course.count = losses.size();
  course.median = median_of(losses);
  course.largest = *std::max_element(losses.begin(), losses.end());
  for (double& loss : losses) loss = std::fabs(loss - course.median);
  course.deviation = 1.4826 * median_of(losses);
  return course;
}

// What a spike is above, whatever the deviation. Where most losses are the same, zero say, there is
// none to go by: the largest loss of the window then counts as usual.
double usual_limit(const Course& course, double ratio) {
  if (course.median > 0) return ratio * course.median;
  if (course.deviation > 0) return course.median;
  const double above_median = course.median + (ratio - 1) * std::fabs(course.median);
  return std::max(above_median, ratio * course.largest);
}

bool is_spike(double loss, const Course& course, const GuardConfig& config) {
  if (course.count == 0 || !std::isfinite(loss)) return false;
  const bool far = loss > course.median + config.spike_sigmas * course.deviation;
  return far && loss > usual_limit(course, config.spike_ratio);
}

Reason say(ReasonCode code, std::string text, RankId rank = RankId(-1)) {
  Reason reason;
  reason.code = code;
  reason.rank = rank;
  reason.text = std::move(text);
  return reason;
}

// One look at one round.
class Look {
 public:
  Look(const PolicyInput& input, Memory memory)
      : input_(input), config_(input.config.guard), m_(memory) {}

  PolicyOutput run() && {
    if (input_.summary.reporting > 0) {
      note_orders();
      if (m_.waiting == 0) judge_round();
      raise_stage();
      propose();
    }
    output_.state = keep(m_);
    return std::move(output_);
  }

 private:
  unsigned long long round() const { return input_.summary.round.value(); }
  double rounds_to_act() const { return config_.nonfinite_streak; }

  // Once the order is in the plan the count starts anew, from when all ranks apply it.
  void note_orders() {
    if (stage_of(m_) == Stage::roll_back && input_.plan.rollback.ticket > m_.ticket) {
      m_.stage = 0;
      m_.nonfinite_streak = m_.spike_streak = 0;
      m_.waiting = 1;
    }
    if (input_.summary.plan_applied_max >= input_.plan.id.number) m_.waiting = 0;
  }

  void judge_round() {
    const StepSummary& s = input_.summary;
    if (s.nonfinite_ranks > 0) return note_nonfinite();
    if (!std::isfinite(s.loss)) return;
    m_.nonfinite_streak = 0;
    // Only the young spike is left out, so that a new plateau becomes the usual loss in time.
    const double skip = std::min<double>(m_.spike_streak, config_.spike_rounds);
    course_ = course_of(input_.history, config_.window_rounds, static_cast<std::size_t>(skip));
    if (is_spike(s.loss, course_, config_)) return begin_streak(m_.spike_streak);
    m_.spike_streak = 0;
    note_clean();
  }

  // Trouble that it acted on keeps its beginning until it is over: later snapshots are suspect.
  void begin_streak(double& streak) {
    const bool begins = m_.nonfinite_streak == 0 && m_.spike_streak == 0 && m_.acted == 0;
    if (begins) m_.bad_since = static_cast<double>(round());
    ++streak;
    m_.clean_streak = 0;
  }

  void note_nonfinite() {
    begin_streak(m_.nonfinite_streak);
    if (m_.announced != 0) return;
    m_.announced = 1;
    const StepSummary& s = input_.summary;
    output_.findings.push_back(
        say(ReasonCode::nonfinite_step,
            sentence("%d of %d ranks report a loss or gradient that is not finite, rank %d first",
                     s.nonfinite_ranks, s.reporting, s.first_nonfinite_rank.value()),
            s.first_nonfinite_rank));
  }

  void note_clean() {
    ++m_.clean_streak;
    if (m_.clean_streak < rounds_to_act()) return;
    if (m_.acted != 0) {
      output_.findings.push_back(
          say(ReasonCode::guard_recovered,
              sentence("loss %.4g: %.0f clean rounds in a row, the trouble of round %.0f is over",
                       input_.summary.loss, m_.clean_streak, m_.bad_since)));
    }
    m_.announced = m_.acted = m_.stage = m_.limit_told = 0;
  }

  void raise_stage() {
    const bool spikes = m_.spike_streak >= config_.spike_rounds;
    const bool streak = m_.nonfinite_streak >= rounds_to_act();
    if (!spikes && !streak) return;
    const bool back = spikes || m_.nonfinite_streak >= 2 * rounds_to_act();
    if (back && stage_of(m_) != Stage::roll_back) m_.ticket = input_.plan.rollback.ticket;
    m_.stage = std::max(m_.stage, back ? 2.0 : 1.0);
    m_.announced = m_.acted = 1;
    const double now = static_cast<double>(round());
    if (m_.hold_until < now + config_.hold_rounds / 2) m_.hold_until = now + config_.hold_rounds;
  }

  Reason trouble() const {
    if (m_.nonfinite_streak > 0 || course_.count == 0) {
      return say(ReasonCode::nonfinite_streak,
                 sentence("%.0f rounds in a row not finite, since round %.0f", m_.nonfinite_streak,
                          m_.bad_since),
                 input_.summary.first_nonfinite_rank);
    }
    return say(ReasonCode::loss_spike,
               sentence("loss %.4g since round %.0f, usual is %.4g (spread %.2g)",
                        input_.summary.loss, m_.bad_since, course_.median, course_.deviation));
  }

  void propose() {
    const bool bad = m_.nonfinite_streak > 0 || m_.spike_streak > 0;
    if (stage_of(m_) == Stage::watch || !bad) return;
    const RoundId hold(static_cast<std::uint64_t>(m_.hold_until));
    if (hold > input_.plan.hold_until && config_.hold_rounds > 0) {
      Reason why = trouble();
      why.text += sentence("; knobs rest until round %.0f", m_.hold_until);
      output_.proposals.push_back({HoldUntil{hold}, std::move(why)});
    }
    if (stage_of(m_) == Stage::roll_back) propose_rollback();
  }

  void propose_rollback() {
    if (!input_.job.capabilities.rollback) return;
    Reason why = trouble();
    if (input_.plan.rollback.ticket >= config_.max_rollbacks) {
      if (std::exchange(m_.limit_told, 1.0) != 0) return;
      why.code = ReasonCode::rollback_limit;
      why.text += sentence("; no rollback: %u of %u are used up", input_.plan.rollback.ticket,
                           config_.max_rollbacks);
      output_.findings.push_back(std::move(why));
      return;
    }
    why.text += sentence("; going back to before round %.0f", m_.bad_since);
    output_.proposals.push_back(
        {RollBack{RoundId(static_cast<std::uint64_t>(m_.bad_since))}, std::move(why)});
  }

  const PolicyInput& input_;
  const GuardConfig& config_;
  Memory m_;
  Course course_;
  PolicyOutput output_;
};

}  // namespace

PolicyOutput Guard::propose(const PolicyInput& input, PolicyState state) const {
  return Look(input, remember(state.take_or_fresh<NumbersState>())).run();
}

}  // namespace cox
