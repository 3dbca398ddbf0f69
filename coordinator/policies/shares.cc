#include "coordinator/policies/shares.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/shares_choice.h"
#include "coordinator/policies/shares_levels.h"
#include "coordinator/policies/shares_notes.h"
#include "coordinator/policies/shares_speeds.h"
#include "coordinator/policies/shares_words.h"

namespace cox {
namespace {

constexpr double kWorthRounds = 3;     // in a row before a change
constexpr double kWithoutNews = 1.5;   // times the smallest gain, while no rank's speed changed
constexpr double kSureDeviations = 4;  // of the slowest rank's level that a gain must exceed

Reason say(ReasonCode code, Outcome outcome, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = outcome;
  reason.text = std::move(text);
  return reason;
}

bool is_shareable(const PolicyInput& input) {
  return input.config.shares.mode != PolicyMode::off && input.job.world_size > 1 &&
         samples_of_step(input) > 0;
}

// One round.
class Round {
 public:
  Round(const PolicyInput& input, SharesNotes& notes) : input_(input), notes_(notes) {}

  void run() {
    if (!is_calibrated()) {
      notes_.worth_rounds() = 0;
      return;
    }
    shares_ = measured_problem(input_, notes_);
    if (shares_.breaks_limits) return enforce_limits();
    const double most =
        gain_ratio(shares_, least_seconds(shares_.problem.ranks, shares_.problem.units));
    if (most < needed_gain()) return rest(most);
    const auto assignment = assign_shares(shares_.problem);
    if (!assignment.ok()) return tell_unmeetable(assignment.status());
    const double gain = gain_ratio(shares_, assignment->seconds);
    if (gain < needed_gain()) return rest(gain);
    if (notes_.suspects() > 0) return;  // a rank that may be changing is waited for
    notes_.worth_rounds() += 1;
    if (notes_.worth_rounds() >= kWorthRounds) propose(*assignment, gain);
  }

  PolicyOutput output() && { return std::move(output_); }

 private:
  // Whether enough is known, and something could be changed.
  bool is_calibrated() {
    const auto settle = static_cast<double>(input_.config.shares.settle_rounds);
    const bool in_flight = input_.summary.plan_applied_max < input_.plan.id.number;
    if (input_.summary.reporting == 0 || in_flight || input_.summary.finished > 0) return false;
    if (notes_.settled_rounds() < settle) return false;
    for (std::size_t r = 0; r < notes_.ranks(); ++r) {
      const bool has_no_work = !input_.plan.shares.empty() && input_.plan.shares[r] == 0;
      if (notes_.seen()[r] < settle && !(has_no_work && notes_.count()[r] == 0)) return false;
    }
    return true;
  }

  double needed_gain() {
    const std::size_t slowest = shares_.slowest.rank;
    const double least = input_.config.shares.smallest_gain_ratio *
                         (notes_.has_news() != 0 || notes_.shares_plan() == 0 ? 1 : kWithoutNews);
    if (notes_.count()[slowest] == 0) return least;
    return std::max(least, kSureDeviations * level_deviation(notes_, slowest));
  }

  void propose(const ShareAssignment& assignment, double gain) {
    const double smallest = input_.config.shares.smallest_gain_ratio;
    const std::vector<std::size_t> held = held_ranks(shares_, assignment, smallest);
    const double before = shares_.slowest.seconds + shares_.shared_seconds;
    std::string text = moves_text(shares_, assignment, Times::measured);
    text += sentence(
        "; a step is predicted to take %s instead of %s (%.1f %% less), rank %zu is "
        "the slowest now",
        milliseconds(before * (1 - gain)).c_str(), milliseconds(before).c_str(), 100 * gain,
        shares_.slowest.rank);
    text += held_text(shares_, held);
    const auto code = held.empty() ? ReasonCode::shares_changed : ReasonCode::shares_limited;
    output_.proposals.push_back(
        {SetShares{shares_of(assignment.units)}, say(code, {}, std::move(text))});
    notes_.told() = 0;
  }

  void enforce_limits() {
    const auto assignment = assign_shares(shares_.problem);
    if (!assignment.ok()) return tell_unmeetable(assignment.status());
    std::string text = "a cap or minimum does not allow the present shares: ";
    text += moves_text(shares_, *assignment, Times::measured);
    text += sentence("; a step is predicted to take %s",
                     milliseconds(assignment->seconds + shares_.shared_seconds).c_str());
    output_.proposals.push_back({SetShares{shares_of(assignment->units)},
                                 say(ReasonCode::shares_limited, {}, std::move(text))});
  }

  // Why nothing changes, when that is news.
  void rest(double gain) {
    notes_.worth_rounds() = 0;
    const std::size_t slowest = shares_.slowest.rank;
    const auto units = static_cast<unsigned long long>(shares_.problem.present[slowest]);
    tell(say(ReasonCode::shares_kept, Outcome::unchanged,
             sentence("shares stay: other ones would save at most %.1f %% of a step of %s, %.1f %% "
                      "are worth a change; the slowest is rank %zu with %llu units (%s)",
                      100 * std::max(gain, 0.0),
                      milliseconds(shares_.slowest.seconds + shares_.shared_seconds).c_str(),
                      100 * needed_gain(), slowest, units, unit_text(shares_).c_str())));
  }

  void tell_unmeetable(const Status& status) {
    notes_.worth_rounds() = 0;
    tell(say(ReasonCode::shares_unmeetable, Outcome::unchanged,
             "shares stay: " + status.message() + " (" + unit_text(shares_) + ")"));
  }

  void tell(Reason reason) {
    const double now = static_cast<double>(reason.code) * 1e12 +
                       static_cast<double>(input_.plan.id.number % 1000000000000u) + 1;
    if (std::exchange(notes_.told(), now) != now) output_.findings.push_back(std::move(reason));
  }

  const PolicyInput& input_;
  SharesNotes& notes_;
  SharesProblem shares_;
  PolicyOutput output_;
};

// Where shares start: by the user's hint, or within caps that even shares would break. Shares that
// were restored are measured ones and stay.
PolicyOutput first_shares(const PolicyInput& input) {
  PolicyOutput output;
  const SharesProblem shares = hinted_problem(input);
  const bool has_hint = !input.config.shares.hint.empty() && input.plan.shares.empty();
  if (!has_hint && !shares.breaks_limits) return output;
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) {
    output.findings.push_back(say(
        ReasonCode::shares_unmeetable, Outcome::unchanged,
        "shares start even: " + assignment.status().message() + " (" + unit_text(shares) + ")"));
    return output;
  }
  if (assignment->units == shares.problem.present) return output;
  const auto code = has_hint ? ReasonCode::shares_hint : ReasonCode::shares_limited;
  std::string text = has_hint ? "shares start by the hint: " : "shares start within the limits: ";
  text += moves_text(shares, *assignment, Times::hinted);
  output.proposals.push_back(
      {SetShares{shares_of(assignment->units)}, say(code, {}, std::move(text))});
  return output;
}

}  // namespace

PolicyOutput SharesPolicy::propose(const PolicyInput& input, PolicyState state) const {
  if (!is_shareable(input)) return {{}, {}, std::move(state)};
  SharesNotes notes(state.take_or_fresh<NumbersState>(), input.job.world_size);
  learn_speeds(input, notes);
  Round round(input, notes);
  round.run();
  PolicyOutput output = std::move(round).output();
  output.state = std::move(notes).release();
  return output;
}

// A new start of the job: speeds that were known are known no more than roughly.
PolicyOutput SharesPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  if (!is_shareable(input)) return {{}, {}, std::move(state)};
  SharesNotes notes(state.take_or_fresh<NumbersState>(), input.job.world_size);
  notes.start_again();
  PolicyOutput output = first_shares(input);
  output.state = std::move(notes).release();
  return output;
}

}  // namespace cox
