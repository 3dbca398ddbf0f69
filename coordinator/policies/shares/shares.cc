#include "coordinator/policies/shares/shares.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/shares/model.h"

namespace cox {

// The finding that was last told, so that it is told once under a plan.
enum class SharesNews : std::uint8_t { none = 0, kept = 1, unmeetable = 2 };
template <>
inline constexpr SharesNews kLargestOf<SharesNews> = SharesNews::unmeetable;

namespace {

constexpr std::uint32_t kWorthRounds = 3;  // in a row before a change
constexpr double kWithoutNews = 1.5;       // times the smallest gain, while no rank's speed changed
constexpr double kSureDeviations = 4;      // of the slowest rank's level that a gain must exceed
constexpr double kPeakRatio = 0.95;        // of its memory limit that a rank may fill
constexpr std::size_t kRanksTold = 4;

struct SharesState {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t worth_rounds = 0;  // in a row in which a change was worth it
  SharesNews told = SharesNews::none;
  std::uint64_t told_plan = 0;      // number of the plan in force then
  std::vector<std::uint64_t> caps;  // per rank: samples that fit its memory; 0 = not known

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.worth_rounds);
    visit(self.told);
    visit(self.told_plan);
    visit(self.caps);
  }
};

SharesState state_for(PolicyState kept, const JobFacts& job) {
  auto state = kept.take_or_fresh<SharesState>();
  const auto ranks = static_cast<std::size_t>(job.world_size);
  if (state.caps.size() != ranks) state = {.caps = std::vector<std::uint64_t>(ranks, 0)};
  return state;
}

bool is_shareable(const PolicyInput& input) {
  return input.config.shares.mode != PolicyMode::off && input.job.world_size > 1 &&
         samples_of_step(input.job, input.plan) > 0;
}

// ---- Memory.

// Memory is at worst in proportion to samples, so a part of the limit that is left lets the samples
// grow by that ratio at least. What already ran within the limit fits.
std::uint64_t cap_after(const RankSignal& report, std::uint64_t before) {
  const auto limit = static_cast<double>(report.memory_limit_bytes);
  const auto peak = static_cast<double>(report.memory_peak_bytes);
  const double now = std::floor(static_cast<double>(report.samples) / report.rounds);
  const double safe = std::clamp(std::floor(now * kPeakRatio * limit / peak), 1.0, 1e12);
  const auto cap = static_cast<double>(before);
  if (peak > kPeakRatio * limit && now <= cap) {
    return static_cast<std::uint64_t>(peak > limit ? safe : std::max(now, 1.0));
  }
  return static_cast<std::uint64_t>(std::max({cap, safe, peak > limit ? 1.0 : now}));
}

// Where shares are samples. Reports count as they do for speeds.
void learn_caps(const PolicyInput& input, std::vector<std::uint64_t>& caps) {
  const Speeds& speeds = input.estimates.speeds;
  if (input.job.micro_batch != 0 || speeds.ranks.size() != caps.size()) return;
  for (const RankSignal& report : input.signals.reports) {
    const auto r = static_cast<std::size_t>(report.rank.value());
    if (report.memory_limit_bytes == 0 || report.memory_peak_bytes == 0) continue;
    if (report.samples == 0 || report.rounds == 0 || r >= caps.size()) continue;
    const bool counts = speeds.ranks[r].seen > speeds.ranks[r].seen_before &&
                        report.plan_applied >= speeds.shares_plan &&
                        !report.has(SignalFlag::finished) && !report.has(SignalFlag::watching);
    if (counts) caps[r] = cap_after(report, caps[r]);
  }
}

// ---- Sentences.

std::string milliseconds(double seconds) {
  return sentence("%.3g ms", 1e3 * seconds);
}

const char* units_word(const SharesProblem& shares) {
  return shares.unit_samples > 1 ? "micro-batches" : "samples";
}

// "a unit is a micro-batch of 4 samples" or "a unit is a sample".
std::string explain_unit(const SharesProblem& shares) {
  if (shares.unit_samples == 1) return "a unit is a sample";
  return sentence("a unit is a micro-batch of %llu samples",
                  static_cast<unsigned long long>(shares.unit_samples));
}

std::uint64_t distance(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : b - a;
}

// "rank 2 takes 6 micro-batches instead of 16 (3.10 ms each), rank 0 20 instead of 16 (...)": those
// that move most first, four at most. REQUIRES: an assignment that moves something.
enum class Times { measured, hinted };
std::string explain_moves(const SharesProblem& shares, const ShareAssignment& assignment,
                          Times times) {
  const std::vector<std::uint64_t>& present = shares.problem.present;
  const std::vector<std::uint64_t>& units = assignment.units;
  std::vector<std::size_t> moved;
  for (std::size_t r = 0; r < units.size(); ++r) {
    if (units[r] != present[r]) moved.push_back(r);
  }
  std::stable_sort(moved.begin(), moved.end(), [&](std::size_t a, std::size_t b) {
    return distance(units[a], present[a]) > distance(units[b], present[b]);
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(moved.size(), kRanksTold); ++i) {
    const std::size_t r = moved[i];
    text += sentence("%srank %zu takes %llu %s instead of %llu", i == 0 ? "" : ", ", r,
                     static_cast<unsigned long long>(units[r]), units_word(shares),
                     static_cast<unsigned long long>(present[r]));
    const RankCost& rank = shares.problem.ranks[r];
    text += times == Times::measured ? " (" + milliseconds(rank.seconds_per_unit) + " each)"
                                     : sentence(" (speed %.3g)", 1 / rank.seconds_per_unit);
  }
  if (moved.size() > kRanksTold) text += sentence(", %zu more move", moved.size() - kRanksTold);
  return text;
}

// "; rank 3 is held to 12 samples by its cap", ... ; empty without any.
std::string explain_held(const SharesProblem& shares, const std::vector<std::size_t>& held) {
  std::string text;
  for (std::size_t i = 0; i < std::min(held.size(), kRanksTold); ++i) {
    text += sentence("; rank %zu is held to %llu %s by its cap", held[i],
                     static_cast<unsigned long long>(shares.problem.ranks[held[i]].max_units),
                     units_word(shares));
  }
  if (held.size() > kRanksTold) text += sentence("; so are %zu more", held.size() - kRanksTold);
  return text;
}

std::string explain_kept(const SharesProblem& shares, double gain, double needed) {
  const std::size_t slowest = shares.slowest.rank;
  return sentence(
      "shares stay: other ones would save at most %.1f %% of a step of %s, %.1f %% are worth a "
      "change; the slowest is rank %zu with %llu units (%s)",
      100 * std::max(gain, 0.0),
      milliseconds(shares.slowest.seconds + shares.shared_seconds).c_str(), 100 * needed, slowest,
      static_cast<unsigned long long>(shares.problem.present[slowest]),
      explain_unit(shares).c_str());
}

// ---- Decisions.

Reason reason_of(ReasonCode code, Outcome outcome, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = outcome;
  reason.text = std::move(text);
  return reason;
}

PolicyOutput proposal_of(const ShareAssignment& assignment, ReasonCode code, std::string text) {
  PolicyOutput output;
  output.proposals.push_back(
      {SetShares{shares_of(assignment.units)}, reason_of(code, {}, std::move(text))});
  return output;
}

// Whether enough is known, and something could be changed.
bool is_calibrated(const PolicyInput& input) {
  const Speeds& speeds = input.estimates.speeds;
  const std::uint32_t settle = input.config.shares.settle_rounds;
  const bool in_flight = input.summary.plan_applied_max < input.plan.id.number;
  if (input.summary.reporting == 0 || in_flight || input.summary.finished > 0) return false;
  if (speeds.ranks.empty() || speeds.rounds_of_shares < settle) return false;
  for (std::size_t r = 0; r < speeds.ranks.size(); ++r) {
    const bool has_no_work = !input.plan.shares.empty() && input.plan.shares[r] == 0;
    const RankSpeed& rank = speeds.ranks[r];
    if (rank.seen < settle && !(has_no_work && rank.reports == 0)) return false;
  }
  return true;
}

double needed_gain(const PolicyInput& input, const SharesProblem& shares) {
  const Speeds& speeds = input.estimates.speeds;
  const bool is_first = speeds.shares_plan == 0;
  const double least = input.config.shares.smallest_gain_ratio *
                       (speeds.changed_since_shares || is_first ? 1 : kWithoutNews);
  const std::size_t slowest = shares.slowest.rank;
  if (speeds.ranks[slowest].reports == 0) return least;
  return std::max(least, kSureDeviations * level_deviation(speeds, slowest));
}

PolicyOutput change(const SharesProblem& shares, const ShareAssignment& assignment, double gain,
                    double smallest_gain) {
  const std::vector<std::size_t> held = held_ranks(shares, assignment, smallest_gain);
  const double before = shares.slowest.seconds + shares.shared_seconds;
  std::string text = explain_moves(shares, assignment, Times::measured);
  text += sentence(
      "; a step is predicted to take %s instead of %s (%.1f %% less), rank %zu is the slowest now",
      milliseconds(before * (1 - gain)).c_str(), milliseconds(before).c_str(), 100 * gain,
      shares.slowest.rank);
  text += explain_held(shares, held);
  PolicyOutput output = proposal_of(
      assignment, held.empty() ? ReasonCode::shares_changed : ReasonCode::shares_limited,
      std::move(text));
  output.proposals.front().reason.forecast.step_ratio = 1 - gain;
  return output;
}

// The answer to a round in which nothing changes; said when that is news under this plan.
PolicyOutput stay(const PolicyInput& input, SharesState& state, SharesNews news, std::string text) {
  PolicyOutput output;
  state.worth_rounds = 0;
  const std::uint64_t plan = input.plan.id.number;
  if (state.told == news && state.told_plan == plan) return output;
  state.told = news;
  state.told_plan = plan;
  const auto code =
      news == SharesNews::kept ? ReasonCode::shares_kept : ReasonCode::shares_unmeetable;
  output.findings.push_back(reason_of(code, Outcome::unchanged, std::move(text)));
  return output;
}

PolicyOutput stay_unmeetable(const PolicyInput& input, SharesState& state,
                             const SharesProblem& shares, const Status& status) {
  return stay(input, state, SharesNews::unmeetable,
              "shares stay: " + status.message() + " (" + explain_unit(shares) + ")");
}

PolicyOutput enforce_limits(const PolicyInput& input, SharesState& state,
                            const SharesProblem& shares) {
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) return stay_unmeetable(input, state, shares, assignment.status());
  std::string text = "a cap or minimum does not allow the present shares: ";
  text += explain_moves(shares, *assignment, Times::measured);
  text += sentence("; a step is predicted to take %s",
                   milliseconds(assignment->seconds + shares.shared_seconds).c_str());
  return proposal_of(*assignment, ReasonCode::shares_limited, std::move(text));
}

PolicyOutput judge(const PolicyInput& input, SharesState& state) {
  if (!is_calibrated(input)) {
    state.worth_rounds = 0;
    return {};
  }
  const SharesProblem shares = measured_problem(input, state.caps);
  if (shares.breaks_limits) return enforce_limits(input, state, shares);
  const double needed = needed_gain(input, shares);
  const auto stay_kept = [&](double gain) {
    return stay(input, state, SharesNews::kept, explain_kept(shares, gain, needed));
  };
  const double most = gain_ratio(shares, least_seconds(shares.problem.ranks, shares.problem.units));
  if (most < needed) return stay_kept(most);
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) return stay_unmeetable(input, state, shares, assignment.status());
  const double gain = gain_ratio(shares, assignment->seconds);
  if (gain < needed) return stay_kept(gain);
  if (input.estimates.speeds.changing > 0) return {};  // a rank that may be changing is waited for
  state.worth_rounds = std::min(state.worth_rounds + 1, kWorthRounds);
  if (state.worth_rounds < kWorthRounds) return {};
  state.told = SharesNews::none;
  return change(shares, *assignment, gain, input.config.shares.smallest_gain_ratio);
}

// Where shares start: by the user's hint, or within caps that even shares would break. Shares that
// were restored are measured ones and stay.
PolicyOutput first_shares(const PolicyInput& input) {
  PolicyOutput output;
  const SharesProblem shares = hinted_problem(input);
  const bool has_hint = !input.config.shares.hint.empty() && input.plan.shares.empty();
  if (!has_hint && !shares.breaks_limits) return output;
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) {
    output.findings.push_back(reason_of(
        ReasonCode::shares_unmeetable, Outcome::unchanged,
        "shares start even: " + assignment.status().message() + " (" + explain_unit(shares) + ")"));
    return output;
  }
  if (assignment->units == shares.problem.present) return output;
  const auto code = has_hint ? ReasonCode::shares_hint : ReasonCode::shares_limited;
  std::string text = has_hint ? "shares start by the hint: " : "shares start within the limits: ";
  return proposal_of(*assignment, code, text + explain_moves(shares, *assignment, Times::hinted));
}

}  // namespace

PolicyOutput SharesPolicy::propose(const PolicyInput& input, PolicyState state) const {
  if (!is_shareable(input)) return {{}, {}, std::move(state)};
  SharesState mine = state_for(std::move(state), input.job);
  learn_caps(input, mine.caps);
  PolicyOutput output = judge(input, mine);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

PolicyOutput SharesPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  if (!is_shareable(input)) return {{}, {}, std::move(state)};
  SharesState mine = state_for(std::move(state), input.job);
  mine.worth_rounds = 0;
  mine.told = SharesNews::none;
  PolicyOutput output = first_shares(input);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

}  // namespace cox
