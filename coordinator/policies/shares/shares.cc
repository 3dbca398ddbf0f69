#include "coordinator/policies/shares/shares.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "coordinator/core/fields.h"
#include "coordinator/core/selection.h"
#include "coordinator/core/share_units.h"
#include "coordinator/core/text.h"
#include "coordinator/estimates/speeds.h"
#include "coordinator/planner/share_assignment.h"

namespace cox {

// The last finding that was reported. Each is reported once under a plan.
enum class SharesNews : std::uint8_t { none = 0, kept = 1, unmeetable = 2 };
template <>
inline constexpr SharesNews kLargestOf<SharesNews> = SharesNews::unmeetable;

namespace {

constexpr std::uint32_t kWorthRounds = 3;  // in a row before a change
constexpr double kWithoutNews = 1.5;       // times the smallest gain, if no rank's speed changed
constexpr double kSureDeviations = 4;      // of the slowest rank's level; a gain must exceed them
constexpr double kPeakRatio = 0.95;        // of its memory limit, for a rank
constexpr std::uint64_t kMostSamples = 1'000'000'000'000;  // upper bound of a cap by memory
constexpr std::size_t kRanksTold = 4;
constexpr std::uint64_t kMaxShare = 1 << 20;  // in a plan
constexpr double kFastest = 1e-12;            // seconds per unit, so that no rank is free
constexpr int kMostPricings = 4;              // of successive assignments
constexpr int kMostMoves = 16;                // of one unit each, starting from the best assignment

struct SharesState {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t worth_rounds = 0;  // in a row in which a change was worth while
  SharesNews told = SharesNews::none;
  std::uint64_t told_plan = 0;      // number of the plan in force at that finding
  std::vector<std::uint64_t> caps;  // per rank: samples that fit its memory; 0 = not known

  static auto fields(auto& self) {
    return message("SharesState", field(1, "worth_rounds", self.worth_rounds),
                   field(2, "told", self.told), field(3, "told_plan", self.told_plan),
                   field(4, "caps", self.caps));
  }
};

SharesState state_for(PolicyState kept, const JobFacts& job) {
  auto state = kept.take_or_fresh<SharesState>();
  const std::size_t ranks = job.ranks();
  const auto is_cap = [](std::uint64_t samples) { return samples <= kMostSamples; };
  const bool is_known = state.caps.size() == ranks && std::ranges::all_of(state.caps, is_cap);
  if (!is_known) state = {.caps = std::vector<std::uint64_t>(ranks, 0)};
  return state;
}

bool is_shareable(const PolicyInput& input) {
  return input.config.shares.mode != PolicyMode::off && input.job.world_size > 1 &&
         samples_of_step(input.job, input.plan) > 0;
}

// ---- Memory.

// In the worst case memory grows in proportion to samples. Room below the limit therefore lets the
// samples grow at least by the ratio of limit to peak. A size that ran within the limit fits.
std::uint64_t cap_after(const RankSignal& report, std::uint64_t before) {
  const auto limit = static_cast<double>(report.memory_limit_bytes);
  const auto peak = static_cast<double>(report.memory_peak_bytes);
  const double now = std::floor(static_cast<double>(report.samples) / report.rounds);
  const double safe = std::clamp(std::floor(now * kPeakRatio * limit / peak), 1.0,
                                 static_cast<double>(kMostSamples));
  const auto cap = static_cast<double>(before);
  if (peak > kPeakRatio * limit && now <= cap) {
    return static_cast<std::uint64_t>(peak > limit ? safe : std::max(now, 1.0));
  }
  return static_cast<std::uint64_t>(std::max({cap, safe, peak > limit ? 1.0 : now}));
}

// Learns caps if shares are samples. Counts the same reports as the estimates of speed do.
void learn_caps(const PolicyInput& input, std::vector<std::uint64_t>& caps) {
  const Speeds& speeds = input.estimates.speeds;
  if (input.job.micro_batch != 0 || speeds.ranks.size() != caps.size()) return;
  if (input.summary.memory_limits_told == 0) return;
  for (const RankSignal& report : input.signals.reports) {
    const auto r = static_cast<std::size_t>(report.rank.value());
    if (report.memory_limit_bytes == 0 || report.memory_peak_bytes == 0) continue;
    if (report.samples == 0 || report.rounds == 0 || r >= caps.size()) continue;
    const bool counts = speeds.ranks[r].seen > speeds.ranks[r].seen_before &&
                        report.plan_applied >= speeds.shares_plan && report.applies_plans();
    if (counts) caps[r] = cap_after(report, caps[r]);
  }
}

// ---- The problem of a round: each rank's present units and the best ones under minima and caps. A
// unit is a micro-batch of the job, or a sample in a job without micro-batches.

// The problem of this round in absolute seconds, with the units of now as the present ones.
struct SharesProblem {
  ShareProblem problem;
  std::uint64_t unit_samples = 1;
  double shared_seconds = 0;   // of a step, besides the work of the slowest rank
  SlowestRank slowest;         // with the present units
  bool breaks_limits = false;  // a rank is below its minimum or above its cap now
};

// Sets units, minima, caps and present units, but no costs.
SharesProblem limits_of(const PolicyInput& input) {
  const SharesConfig& config = input.config.shares;
  const std::size_t ranks = input.job.ranks();
  SharesProblem shares;
  const std::uint64_t unit = shares.unit_samples =
      std::max<std::uint64_t>(input.job.micro_batch, 1);
  shares.problem.units = (samples_of_step(input.job, input.plan) + unit - 1) / unit;
  shares.problem.ranks.resize(ranks);
  for (RankCost& rank : shares.problem.ranks) {
    rank.min_units = (config.min_samples + unit - 1) / unit;
  }
  for (const auto& [rank, most] : config.max_samples) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= ranks) continue;
    shares.problem.ranks[static_cast<std::size_t>(rank)].max_units = most / unit;
  }
  for (std::size_t r = 0; r < ranks && r < input.most_samples.size(); ++r) {
    RankCost& rank = shares.problem.ranks[r];
    rank.max_units = std::min(rank.max_units, input.most_samples[r] / unit);
  }
  shares.problem.present = units_of_shares(shares.problem.units, input.plan.shares, ranks);
  return shares;
}

void look_at_present(SharesProblem& shares) {
  const ShareProblem& problem = shares.problem;
  shares.slowest = slowest_rank(problem.ranks, problem.present);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    shares.breaks_limits = shares.breaks_limits ||
                           problem.present[r] < problem.ranks[r].min_units ||
                           problem.present[r] > problem.ranks[r].max_units;
  }
}

double median_seconds_per_sample(const Speeds& speeds) {
  std::vector<double> known;
  for (std::size_t r = 0; r < speeds.ranks.size(); ++r) {
    if (speeds.ranks[r].reports > 0) known.push_back(seconds_per_sample(speeds, r));
  }
  return known.empty() ? 1 : median_of(known);
}

// Returns the problem by estimated speeds. A rank without an estimate and without samples counts as
// the median of the others. `caps` are the most samples that fit each rank's memory; 0 = not known.
// REQUIRES: samples_of_step() > 0; estimates and caps have an entry per rank; all ranks with
// samples have a speed.
SharesProblem measured_problem(const PolicyInput& input, std::span<const std::uint64_t> caps) {
  const Speeds& speeds = input.estimates.speeds;
  SharesProblem shares = limits_of(input);
  shares.shared_seconds = speeds.shared_seconds;
  const auto is_known = [](const RankSpeed& rank) { return rank.reports > 0; };
  const double middle =
      std::ranges::all_of(speeds.ranks, is_known) ? 0 : median_seconds_per_sample(speeds);
  const auto unit = static_cast<double>(shares.unit_samples);
  for (std::size_t r = 0; r < speeds.ranks.size(); ++r) {
    RankCost& rank = shares.problem.ranks[r];
    const RankSpeed& speed = speeds.ranks[r];
    const double each = is_known(speed) ? seconds_per_sample(speeds, r) : middle;
    const double beside = speed.fixed_seconds * speeds.scale + each * speeds.fixed_samples;
    rank.seconds_per_unit = std::max(each * unit, kFastest);
    rank.fixed_seconds = std::max(beside, 0.0);
    if (caps[r] > 0) rank.max_units = std::min(rank.max_units, caps[r]);
  }
  look_at_present(shares);
  return shares;
}

// Returns the problem by the relative speeds of config.shares.hint; a rank without a hint has speed
// 1. Seconds have no scale. REQUIRES: samples_of_step() > 0.
SharesProblem hinted_problem(const PolicyInput& input) {
  SharesProblem shares = limits_of(input);
  for (RankCost& rank : shares.problem.ranks) rank.seconds_per_unit = 1;
  for (const auto& [rank, speed] : input.config.shares.hint) {
    if (rank < 0 || rank >= input.job.world_size || !(speed > 0)) continue;
    shares.problem.ranks[static_cast<std::size_t>(rank)].seconds_per_unit = 1 / speed;
  }
  look_at_present(shares);
  return shares;
}

// Returns the ratio of the step's time that is saved if the slowest rank takes `seconds`.
double gain_ratio(const SharesProblem& shares, double seconds) {
  const double now = shares.slowest.seconds + shares.shared_seconds;
  return now > 0 ? (shares.slowest.seconds - seconds) / now : 0;
}

// ---- The plans that follow other shares.

// The costs of ranks, and the best shares at these costs.
struct PricedShares {
  SharesProblem shares;
  ShareAssignment assignment;
  double gain = 0;
};

// `costs` are those of the plans in force. Returns the costs of the plans that ranks would settle
// on with `units`.
std::vector<RankCost> settled_costs(const PolicyInput& input, std::vector<RankCost> costs,
                                    const std::vector<std::uint64_t>& units) {
  const std::vector<double> factors = input.work_factors(shares_of(units));
  for (std::size_t r = 0; r < std::min(factors.size(), costs.size()); ++r)
    costs[r].seconds_per_unit *= factors[r];
  return costs;
}

// Moves units of the slowest rank, one at a time, to the rank that would finish one more soonest,
// while each move makes the step shorter. With slightly fewer units a rank may fit a much lighter
// plan.
void move_units(const PolicyInput& input, const std::vector<RankCost>& costs, PricedShares& best) {
  for (int i = 0; i < kMostMoves; ++i) {
    const std::vector<RankCost>& ranks = best.shares.problem.ranks;
    std::vector<std::uint64_t> units = best.assignment.units;
    const std::size_t from = slowest_rank(ranks, units).rank;
    std::optional<std::size_t> to;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (r == from || units[r] >= ranks[r].max_units) continue;
      if (!to || seconds_of(ranks[r], units[r] + 1) < seconds_of(ranks[*to], units[*to] + 1))
        to = r;
    }
    if (!to || units[from] <= ranks[from].min_units) return;
    --units[from];
    ++units[*to];
    std::vector<RankCost> settled = settled_costs(input, costs, units);
    const double seconds = slowest_rank(settled, units).seconds;
    if (seconds >= best.assignment.seconds) return;
    best.shares.problem.ranks = std::move(settled);
    best.assignment = {std::move(units), seconds};
  }
}

// Returns the present shares and the best ones, both at the costs of the plans that ranks would
// settle on.
Result<PricedShares> priced_shares(const PolicyInput& input, SharesProblem shares) {
  const std::vector<RankCost> costs = shares.problem.ranks;
  PricedShares best;
  if (input.work_factors) {
    shares.problem.ranks = settled_costs(input, costs, shares.problem.present);
    look_at_present(shares);
  }
  best.shares = shares;
  best.assignment = {shares.problem.present, shares.slowest.seconds};
  for (int i = 0; i < (input.work_factors ? kMostPricings : 1); ++i) {
    auto next = assign_shares(shares.problem);
    if (!next.ok()) return next.status();
    if (input.work_factors) {
      shares.problem.ranks = settled_costs(input, costs, next->units);
      next->seconds = slowest_rank(shares.problem.ranks, next->units).seconds;
    }
    if (next->seconds >= best.assignment.seconds) break;
    best.shares = shares;
    best.assignment = *std::move(next);
  }
  if (input.work_factors) move_units(input, costs, best);
  best.gain = gain_ratio(best.shares, best.assignment.seconds);
  return best;
}

// Returns the ranks that their caps hold back in `assignment`, if the caps cost more than `worth`
// of the step.
std::vector<std::size_t> held_ranks(const SharesProblem& shares, const ShareAssignment& assignment,
                                    double worth) {
  ShareProblem free = shares.problem;
  for (RankCost& rank : free.ranks) rank.max_units = kNoUnitCap;
  const auto best = fastest_shares(free);
  std::vector<std::size_t> held;
  if (!best.ok() || best->seconds > assignment.seconds * (1 - worth)) return held;
  for (std::size_t r = 0; r < free.ranks.size(); ++r) {
    if (assignment.units[r] == shares.problem.ranks[r].max_units) held.push_back(r);
  }
  return held;
}

// ---- Sentences.

std::string time_text(double seconds) {
  constexpr double kRoundsToASecond = 0.9995;  // avoids "1e+03 ms"
  return seconds < kRoundsToASecond ? concat(general(1e3 * seconds, 3), " ms")
                                    : concat(general(seconds, 3), " s");
}

const char* units_word(const SharesProblem& shares) {
  return shares.unit_samples > 1 ? "micro-batches" : "samples";
}

// "a unit is a micro-batch of 4 samples" or "a unit is a sample".
std::string explain_unit(const SharesProblem& shares) {
  if (shares.unit_samples == 1) return "a unit is a sample";
  return concat("a unit is a micro-batch of ", shares.unit_samples, " samples");
}

std::uint64_t distance(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : b - a;
}

// Returns "rank 2 takes 6 micro-batches instead of 16 (3.10 ms each), rank 0 20 instead of 16
// (...)". Lists the four largest moves at most, the largest first. REQUIRES: `assignment` moves a
// unit.
enum class Times { measured, hinted };
std::string explain_moves(const SharesProblem& shares, const ShareAssignment& assignment,
                          Times times) {
  const std::vector<std::uint64_t>& present = shares.problem.present;
  const std::vector<std::uint64_t>& units = assignment.units;
  std::vector<std::size_t> moved;
  for (std::size_t r = 0; r < units.size(); ++r) {
    if (units[r] != present[r]) moved.push_back(r);
  }
  std::ranges::stable_sort(moved, [&](std::size_t a, std::size_t b) {
    return distance(units[a], present[a]) > distance(units[b], present[b]);
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(moved.size(), kRanksTold); ++i) {
    const std::size_t r = moved[i];
    text += concat(i == 0 ? "rank " : ", rank ", r, " takes ", units[r], " ", units_word(shares),
                   " instead of ", present[r]);
    const RankCost& rank = shares.problem.ranks[r];
    text += times == Times::measured
                ? concat(" (", time_text(rank.seconds_per_unit), " each)")
                : concat(" (speed ", general(1 / rank.seconds_per_unit, 3), ")");
  }
  if (moved.size() > kRanksTold) text += concat(", ", moved.size() - kRanksTold, " more move");
  return text;
}

// Returns "; rank 3 is held to 12 samples by its cap", ... ; empty if `held` is empty.
std::string explain_held(const SharesProblem& shares, const std::vector<std::size_t>& held) {
  std::string text;
  for (std::size_t i = 0; i < std::min(held.size(), kRanksTold); ++i) {
    text += concat("; rank ", held[i], " is held to ", shares.problem.ranks[held[i]].max_units, " ",
                   units_word(shares), " by its cap");
  }
  if (held.size() > kRanksTold) text += concat("; so are ", held.size() - kRanksTold, " more");
  return text;
}

std::string explain_kept(const SharesProblem& shares, double gain, double needed) {
  const std::size_t slowest = shares.slowest.rank;
  return concat("shares stay: other ones would save at most ", percent_text(std::max(gain, 0.0), 1),
                " of a step of ", time_text(shares.slowest.seconds + shares.shared_seconds), ", ",
                percent_text(needed, 1), " are worth a change; the slowest is rank ", slowest,
                " with ", shares.problem.present[slowest], " units (", explain_unit(shares), ")");
}

// ---- Decisions.

PolicyOutput proposal_of(const ShareAssignment& assignment, ReasonCode code, std::string text) {
  PolicyOutput output;
  output.proposals.push_back(
      {SetShares{shares_of(assignment.units)}, reason_of(code, std::move(text))});
  return output;
}

// Returns whether enough is known and the plan can change.
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

// Returns how far the time of a step with these units may be from the prediction, as a ratio of the
// present step. Assumes that a part of each rank's work does not grow with its samples: at most a
// tenth of the present work. Only another assignment shows the size of that part (speeds.h), so the
// part is unknown before the first change.
double unknown_fixed_part(const SharesProblem& shares, const ShareAssignment& assignment) {
  double most = 0;
  for (const double part : {0.025, 0.05, 0.1}) {
    double seconds = 0;
    for (std::size_t r = 0; r < shares.problem.ranks.size(); ++r) {
      const RankCost& rank = shares.problem.ranks[r];
      const auto present = static_cast<double>(shares.problem.present[r]);
      const auto units = static_cast<double>(assignment.units[r]);
      const double work = rank.seconds_per_unit * (units + part * (present - units));
      seconds = std::max(seconds, rank.fixed_seconds + work);
    }
    most = std::max(most, std::fabs(seconds - assignment.seconds));
  }
  const double now = shares.slowest.seconds + shares.shared_seconds;
  return now > 0 ? most / now : 0;
}

// Returns the deviation of the predicted ratio, from three sources: the errors of the levels of the
// slowest ranks before and after; a part of the noise of a step, because ranks that finish together
// wait for the unluckiest one; and, before the first change, unknown_fixed_part().
double deviation_of_gain(const PolicyInput& input, const SharesProblem& shares,
                         const ShareAssignment& assignment, double gain) {
  const Speeds& speeds = input.estimates.speeds;
  const auto error = [&](std::size_t rank) {
    return speeds.ranks[rank].reports > 0 ? level_deviation(speeds, rank) : 0;
  };
  const double before = error(shares.slowest.rank);
  const double after = error(slowest_rank(shares.problem.ranks, assignment.units).rank);
  const double noise = std::sqrt(before * before + after * after + speeds.pooled_variance / 4);
  const double unknown = speeds.shares_plan == 0 ? unknown_fixed_part(shares, assignment) / 2 : 0;
  return std::hypot((1 - gain) * noise, unknown);
}

PolicyOutput change(const PolicyInput& input, const SharesProblem& shares,
                    const ShareAssignment& assignment, double gain) {
  const double smallest_gain = input.config.shares.smallest_gain_ratio;
  const std::vector<std::size_t> held = held_ranks(shares, assignment, smallest_gain);
  const double before = shares.slowest.seconds + shares.shared_seconds;
  std::string text =
      concat(explain_moves(shares, assignment, Times::measured), "; a step is predicted to take ",
             time_text(before * (1 - gain)), " instead of ", time_text(before), " (",
             percent_text(gain, 1), " less), rank ", shares.slowest.rank, " is the slowest now",
             explain_held(shares, held));
  PolicyOutput output = proposal_of(
      assignment, held.empty() ? ReasonCode::shares_changed : ReasonCode::shares_limited,
      std::move(text));
  output.proposals.front().reason.forecast =
      forecast_of_time(1 - gain, deviation_of_gain(input, shares, assignment, gain));
  return output;
}

// Returns whether the whole interval of the prediction is a gain.
bool surely_gains(const PolicyInput& input, const PricedShares& priced) {
  const double deviation = deviation_of_gain(input, priced.shares, priced.assignment, priced.gain);
  return forecast_of_time(1 - priced.gain, deviation).step_ratio_high < 1;
}

bool was_told(const PolicyInput& input, const SharesState& state, SharesNews news) {
  return state.told == news && state.told_plan == input.plan.id.number;
}

// Answers a round in which nothing changes. Adds a finding if `news` is new under this plan.
PolicyOutput stay(const PolicyInput& input, SharesState& state, SharesNews news, std::string text) {
  PolicyOutput output;
  state.worth_rounds = 0;
  if (was_told(input, state, news)) return output;
  state.told = news;
  state.told_plan = input.plan.id.number;
  const auto code =
      news == SharesNews::kept ? ReasonCode::shares_kept : ReasonCode::shares_unmeetable;
  output.findings.push_back(reason_of(code, std::move(text), Outcome::unchanged));
  return output;
}

PolicyOutput stay_unmeetable(const PolicyInput& input, SharesState& state,
                             const SharesProblem& shares, const Status& status) {
  return stay(input, state, SharesNews::unmeetable,
              concat("shares stay: ", status.message(), " (", explain_unit(shares), ")"));
}

PolicyOutput enforce_limits(const PolicyInput& input, SharesState& state,
                            const SharesProblem& shares) {
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) return stay_unmeetable(input, state, shares, assignment.status());
  std::string text =
      concat("a cap or minimum does not allow the present shares: ",
             explain_moves(shares, *assignment, Times::measured), "; a step is predicted to take ",
             time_text(assignment->seconds + shares.shared_seconds));
  PolicyOutput output = proposal_of(*assignment, ReasonCode::shares_limited, std::move(text));
  output.proposals.front().motive = Motive::necessity;
  return output;
}

// Returns whether even the best whole shares surely gain less than `needed`: the ranks cannot
// finish the batch within the time that is left, plus a small allowance for rounding.
bool surely_gains_less(const SharesProblem& shares, double needed) {
  constexpr double kRounding = 1e-9;
  const double now = shares.slowest.seconds + shares.shared_seconds;
  const double wanted = shares.slowest.seconds - needed * now;
  const auto may_end = may_end_by(shares.problem, wanted + kRounding * now);
  return may_end.ok() && !*may_end;
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
  const bool is_no_news = was_told(input, state, SharesNews::kept);
  if (is_no_news && surely_gains_less(shares, needed))
    return stay(input, state, SharesNews::kept, {});
  const auto fastest = fastest_shares(shares.problem);
  if (!fastest.ok()) return stay_unmeetable(input, state, shares, fastest.status());
  const double gain = gain_ratio(shares, fastest->seconds);
  if (gain < needed) return stay_kept(gain);
  const auto priced = priced_shares(input, shares);
  if (!priced.ok()) return stay_unmeetable(input, state, shares, priced.status());
  if (priced->gain < needed || !surely_gains(input, *priced)) return stay_kept(priced->gain);
  if (input.estimates.speeds.changing > 0) return {};  // a speed may still be changing
  state.worth_rounds = std::min(state.worth_rounds + 1, kWorthRounds);
  if (state.worth_rounds < kWorthRounds) return {};
  state.told = SharesNews::none;
  return change(input, priced->shares, priced->assignment, priced->gain);
}

// Start shares from the user's hint, or within caps that even shares would break. Restored shares
// were measured, so keep them.
PolicyOutput first_shares(const PolicyInput& input) {
  PolicyOutput output;
  const SharesProblem shares = hinted_problem(input);
  const bool has_hint = !input.config.shares.hint.empty() && input.plan.shares.empty();
  if (!has_hint && !shares.breaks_limits) return output;
  const auto assignment = assign_shares(shares.problem);
  if (!assignment.ok()) {
    output.findings.push_back(reason_of(ReasonCode::shares_unmeetable,
                                        concat("shares start even: ", assignment.status().message(),
                                               " (", explain_unit(shares), ")"),
                                        Outcome::unchanged));
    return output;
  }
  if (assignment->units == shares.problem.present) return output;
  const auto code = has_hint ? ReasonCode::shares_hint : ReasonCode::shares_limited;
  std::string text = has_hint ? "shares start by the hint: " : "shares start within the limits: ";
  return proposal_of(*assignment, code, text + explain_moves(shares, *assignment, Times::hinted));
}

}  // namespace

std::vector<std::uint32_t> shares_of(const std::vector<std::uint64_t>& units) {
  const std::uint64_t most = *std::ranges::max_element(units);
  const std::uint64_t divisor = std::max<std::uint64_t>(1, (most + kMaxShare - 1) / kMaxShare);
  std::vector<std::uint32_t> shares;
  for (const std::uint64_t n : units) {
    const std::uint64_t share = std::min((n + divisor / 2) / divisor, kMaxShare);
    shares.push_back(static_cast<std::uint32_t>(n > 0 ? std::max<std::uint64_t>(share, 1) : 0));
  }
  return shares;
}

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
