#include "coordinator/policies/accumulation/accumulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/core/fields.h"
#include "coordinator/core/selection.h"
#include "coordinator/core/share_units.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::size_t kWindow = 32;  // rounds looked back
constexpr double kMargin = 1.05;     // times the present anchor must be needed, to raise it
constexpr double kLowerFrom = 0.5;   // of the present anchor must be enough, to lower it
constexpr double kLargestRatio = 1000;

// ---- The model: the cost of synchronising in a round, the division of a step's micro-batches
// among ranks of unequal speed, and the whole batch that follows.
//
// The cost of synchronising is the least communication time over the ranks that worked. The last
// rank to arrive does not wait, so its time is the exchange itself; all others also wait.
// Communication hidden behind the backward pass costs nothing and is left out. Let s be the seconds
// of synchronising, f those of the slowest rank's optimizer, and c those of each of its
// micro-batches. The anchor that meets the target t is (s (1 - t) / t - f) / c. The usual rule
// scales the present anchor by overhead over target. Such a step undershoots, because the share
// falls slower than the anchor grows, and takes several changes. The formula takes one change, and
// each change affects the learning rate.

// The cost of synchronising in one round, or the median of several. Finite and not negative.
struct SyncCost {
  double anchor = 0;        // meets the target
  double sync_seconds = 0;  // a step
  double work_seconds = 0;  // a step of the slowest rank

  static auto fields(auto& self) {
    return message("SyncCost", field(1, "anchor", self.anchor),
                   field(2, "sync_seconds", self.sync_seconds),
                   field(3, "work_seconds", self.work_seconds));
  }
};

// Micro-batches of each rank for each micro-batch of the slowest rank: 1 .. 1000, or 0 for a rank
// without work. One entry per rank.
using RankRatios = std::vector<double>;

std::uint64_t whole_batches(std::uint64_t samples, std::uint64_t micro_batch) {
  return (samples + micro_batch - 1) / micro_batch;
}

// If policy `shares` is on, faster ranks get more work.
bool follows_speeds(const PolicyInput& input) {
  return input.config.shares.mode == PolicyMode::on && input.config.force.shares.empty();
}

// A rank whose speed is unknown counts as the slowest.
RankRatios ratios_of(const Speeds& speeds, const JobFacts& job) {
  RankRatios ratios(job.ranks(), 1.0);
  double slowest = 0;
  for (const RankSpeed& rank : speeds.ranks) {
    if (rank.reports > 0) slowest = std::max(slowest, rank.level);
  }
  for (std::size_t r = 0; r < std::min(ratios.size(), speeds.ranks.size()); ++r) {
    const RankSpeed& rank = speeds.ranks[r];
    if (rank.reports > 0) ratios[r] = std::clamp(slowest / rank.level, 1.0, kLargestRatio);
  }
  return ratios;
}

// Ranks are alike if the plan has no shares.
RankRatios ratios_of(const Plan& plan, const JobFacts& job) {
  RankRatios ratios(job.ranks(), 1.0);
  if (plan.shares.size() != ratios.size()) return ratios;
  std::uint32_t least = 0;  // of the ranks that work
  for (const std::uint32_t share : plan.shares) {
    if (share > 0 && (least == 0 || share < least)) least = share;
  }
  if (least == 0) return ratios;
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    ratios[r] = std::min(plan.shares[r] / static_cast<double>(least), kLargestRatio);
  }
  return ratios;
}

RankRatios rank_ratios(const PolicyInput& input) {
  return follows_speeds(input) ? ratios_of(input.estimates.speeds, input.job)
                               : ratios_of(input.plan, input.job);
}

// Returns 0 if the loop has no global batch.
std::uint64_t job_micro_batches(const JobFacts& job) {
  return whole_batches(job.global_batch, job.micro_batch);
}

std::uint64_t micro_batches_of(const Plan& plan, const JobFacts& job) {
  return whole_batches(samples_of_step(job, plan), job.micro_batch);
}

// Returns the micro-batches of the slowest rank under the newest plan. May be fractional.
double present_anchor(const PolicyInput& input, const RankRatios& ratios) {
  const auto total = static_cast<double>(micro_batches_of(input.plan, input.job));
  return total / std::max(1.0, std::accumulate(ratios.begin(), ratios.end(), 0.0));
}

bool is_ordinary(const PolicyInput& input) {
  return std::ranges::all_of(input.signals.reports, [&](const RankSignal& s) {
    return s.rank.value() < input.job.world_size && s.plan_applied == input.plan.id.number &&
           !s.has(SignalFlag::step_repeated) && !s.has(SignalFlag::rolled_back);
  });
}

// All ranks that worked in a round.
struct WholeRound {
  double sync = std::numeric_limits<double>::infinity();
  double work = 0;         // of the slowest rank
  double optimizer = 0;    // of the slowest rank
  double micro_batch = 0;  // largest time of a micro-batch over ranks, without the optimizer
};

WholeRound whole_round(const PolicyInput& input) {
  WholeRound whole;
  const Timings timings = timings_of(input.signals.reports);
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    const bool is_watching = input.signals.reports[timings.report[i]].has(SignalFlag::watching);
    const double own = timings.own[i];
    if (is_watching || !(own > 0) || !(timings.samples[i] > 0)) continue;
    const double optimizer = timings.of(Phase::optimizer)[i];
    const double each = (own - optimizer) / timings.samples[i];
    whole.sync = std::min(whole.sync, timings.of(Phase::communication)[i]);
    whole.micro_batch =
        std::max(whole.micro_batch, each * static_cast<double>(input.job.micro_batch));
    if (own <= whole.work) continue;
    whole.work = own;
    whole.optimizer = optimizer;
  }
  return whole;
}

// Returns the cost in this round. Returns none if the round says nothing about the plan in force:
// no rank worked, a rank applied another plan, or a step was repeated or rolled back.
std::optional<SyncCost> sync_cost(const PolicyInput& input) {
  if (input.summary.reporting == 0 || !is_ordinary(input)) return std::nullopt;
  const WholeRound whole = whole_round(input);
  if (!std::isfinite(whole.sync)) return std::nullopt;
  const double anchor = present_anchor(input, rank_ratios(input));
  // If work follows speed, the slowest micro-batch sets every rank's time.
  const double each = follows_speeds(input) || anchor == 0
                          ? whole.micro_batch
                          : (whole.work - whole.optimizer) / anchor;
  if (!(each > 0)) return std::nullopt;
  const double target = input.config.accumulation.target_ratio;
  const double room = whole.sync * (1 - target) / target - whole.optimizer;
  return SyncCost{std::clamp(room / each, 0.0, 1e9), whole.sync, whole.work};
}

// ---- The remembered state.

struct AccumulationState {
  static constexpr std::uint32_t kVersion = 2;
  bool told_unable = false;
  bool told_capped = false;
  std::uint64_t plan = 0;        // number of the plan that the rounds belong to
  std::uint32_t rounds = 0;      // measured under it
  std::vector<SyncCost> recent;  // newest rounds, a ring: round n at index n % kWindow

  static auto fields(auto& self) {
    return message("AccumulationState", field(1, "told_unable", self.told_unable),
                   field(2, "told_capped", self.told_capped), field(3, "plan", self.plan),
                   field(4, "rounds", self.rounds), field(5, "recent", self.recent));
  }
  bool is_sane() const {
    const auto is_amount = [](double amount) { return amount >= 0 && amount <= 1e300; };
    return recent.size() == std::min<std::size_t>(rounds, kWindow) &&
           std::ranges::all_of(recent, [&](const SyncCost& cost) {
             return is_amount(cost.anchor) && is_amount(cost.sync_seconds) &&
                    is_amount(cost.work_seconds);
           });
  }
};

void forget_rounds(AccumulationState& state) {
  state.rounds = 0;
  state.recent.clear();
}

void add_round(AccumulationState& state, const SyncCost& cost) {
  if (state.recent.size() < kWindow) {
    state.recent.push_back(cost);
  } else {
    state.recent[state.rounds % kWindow] = cost;
  }
  // Counting on from a multiple of the window keeps the index and bounds the number.
  constexpr std::uint32_t kMostRounds = 1u << 30;
  state.rounds = state.rounds + 1 < kMostRounds ? state.rounds + 1 : kMostRounds - kWindow;
}

// Returns a measured value. The mean of the two middle values may be neither, right after a change.
double lower_median(const std::vector<SyncCost>& costs, double SyncCost::*part) {
  std::vector<double> values;
  for (const SyncCost& cost : costs) values.push_back(cost.*part);
  return select(values, (values.size() - 1) / 2).lower;
}

// ---- Sentences.

std::string explain_unable(const JobFacts& job) {
  if (job.micro_batch == 0) {
    return "accumulation needs micro-batches of a fixed size, which this job does not set; the "
           "batch does not change";
  }
  if (!job.capabilities.accumulation) {
    return "accumulation needs a loop that takes the samples of a step from the plan, as "
           "step.accumulate() of the Trainer does; the batch does not change";
  }
  return {};
}

// "synchronising takes 23.1 % of a step (4.6 ms of 20.1 ms)".
std::string explain_overhead(const SyncCost& cost) {
  const double step = cost.sync_seconds + cost.work_seconds;
  return concat("synchronising takes ", fixed(step > 0 ? 100 * cost.sync_seconds / step : 0, 1),
                " % of a step (", general(1e3 * cost.sync_seconds, 3), " of ",
                general(1e3 * step, 3), " ms)");
}

// Compares a batch of `micro_batches` with the job's, and gives the learning rate by common rules.
// A hint only: the learning rate stays.
std::string explain_batch(std::uint64_t micro_batches, const JobFacts& job) {
  const auto samples = static_cast<double>(micro_batches * job.micro_batch);
  if (job.global_batch == 0) return concat("a step has ", fixed(samples, 0), " samples");
  if (micro_batches == job_micro_batches(job)) {
    return concat("a step has the job's own batch of ", job.global_batch, " samples");
  }
  const double factor = samples / static_cast<double>(job.global_batch);
  return concat("a step has ", fixed(samples, 0), " samples, ", general(factor, 4),
                " times the job's batch; for its learning rate the linear rule gives x",
                general(factor, 4), ", the square root rule x", general(std::sqrt(factor), 4));
}

// ---- Decisions.

// Returns the median absolute deviation around `middle` of the ratio of synchronising to a step.
double spread_of_sync(const std::vector<SyncCost>& costs, double middle) {
  std::vector<double> off;
  for (const SyncCost& cost : costs) {
    const double step = cost.sync_seconds + cost.work_seconds;
    if (step > 0) off.push_back(std::abs(cost.sync_seconds / step - middle));
  }
  return off.empty() ? 0 : median_of(off);
}

// Forecasts the time of a sample: work stays, and synchronising is divided among more or fewer
// micro-batches. The error is the error of the median of the recent rounds. The factor 1.48 turns a
// median absolute deviation into a standard deviation; 1.25 turns the error of a mean into the
// error of a median.
Forecast forecast_of(const std::vector<SyncCost>& recent, const SyncCost& cost, double growth) {
  const double step = cost.sync_seconds + cost.work_seconds;
  if (!(step > 0) || !(growth > 0)) return {};
  const double part = cost.sync_seconds / step;
  const double saved = part * (1 - 1 / growth);
  const double error =
      1.48 * 1.25 * spread_of_sync(recent, part) / std::sqrt(static_cast<double>(recent.size()));
  return saved < 1 ? forecast_of_time(1 - saved, error * std::abs(1 - 1 / growth)) : Forecast{};
}

PolicyOutput finding_of(ReasonCode code, std::string text) {
  PolicyOutput output;
  output.findings.push_back(reason_of(code, std::move(text)));
  return output;
}

PolicyOutput proposal_of(const JobFacts& job, std::uint64_t micro_batches, ReasonCode code,
                         const std::string& why) {
  PolicyOutput output;
  const bool is_own = micro_batches == job_micro_batches(job);
  output.proposals.push_back({SetBatch{is_own ? 0 : micro_batches * job.micro_batch},
                              reason_of(code, why + explain_batch(micro_batches, job))});
  return output;
}

PolicyOutput unable(std::string why, AccumulationState& state) {
  if (std::exchange(state.told_unable, true)) return {};
  return finding_of(ReasonCode::not_capable, std::move(why));
}

PolicyOutput capped(const AccumulationConfig& config, const SyncCost& cost,
                    AccumulationState& state) {
  if (std::exchange(state.told_capped, true)) return {};
  return finding_of(ReasonCode::accumulation_kept,
                    concat(explain_overhead(cost), ", above the target of ",
                           general(100 * config.target_ratio, 3), " %, which needs ",
                           fixed(std::ceil(cost.anchor), 0),
                           " micro-batches of the slowest rank; accumulation.max_anchor is ",
                           config.max_anchor, ", so the batch stays"));
}

PolicyOutput judge(const PolicyInput& input, AccumulationState& state) {
  const AccumulationConfig& config = input.config.accumulation;
  const SyncCost cost{lower_median(state.recent, &SyncCost::anchor),
                      lower_median(state.recent, &SyncCost::sync_seconds),
                      lower_median(state.recent, &SyncCost::work_seconds)};
  const RankRatios ratios = rank_ratios(input);
  const double anchor = present_anchor(input, ratios);
  const bool is_dear = cost.anchor > kMargin * anchor;
  const bool is_cheap = cost.anchor < kLowerFrom * anchor;
  if (!is_dear) state.told_capped = false;
  if (!is_dear && !is_cheap) return {};
  const double wanted =
      std::clamp<double>(std::ceil(kMargin * cost.anchor), config.min_anchor, config.max_anchor);
  const std::uint64_t now = micro_batches_of(input.plan, input.job);
  const std::uint64_t next = step_micro_batches(static_cast<std::uint64_t>(wanted), ratios,
                                                input.job, input.config.shares);
  if (is_dear && next <= now) return capped(config, cost, state);
  if (is_cheap && next >= now) return {};
  PolicyOutput output = proposal_of(
      input.job, next, is_dear ? ReasonCode::accumulation_raised : ReasonCode::accumulation_lowered,
      concat(explain_overhead(cost), is_dear ? ", above" : ", below half of", " the target of ",
             general(100 * config.target_ratio, 3), " %: the slowest rank computes ",
             fixed(wanted, 0), " micro-batches instead of ", general(anchor, 3), "; "));
  output.proposals.front().reason.forecast =
      forecast_of(state.recent, cost,
                  static_cast<double>(next) / static_cast<double>(std::max<std::uint64_t>(now, 1)));
  return output;
}

// Before the first round the plan gets at least the micro-batches that the settings ask for.
PolicyOutput first_batch(const PolicyInput& input) {
  const AccumulationConfig& config = input.config.accumulation;
  const RankRatios ratios = ratios_of(input.plan, input.job);
  const std::uint64_t least =
      step_micro_batches(config.min_anchor, ratios, input.job, input.config.shares);
  const std::uint64_t now = micro_batches_of(input.plan, input.job);
  if (now < least) {
    return proposal_of(
        input.job, least, ReasonCode::accumulation_start,
        concat("every rank starts with at least ", config.min_anchor, " micro-batches a step; "));
  }
  return finding_of(ReasonCode::accumulation_start,
                    concat("synchronising may take ", general(100 * config.target_ratio, 3),
                           " % of a step; the slowest rank starts with ", now,
                           " micro-batches: ", explain_batch(now, input.job)));
}

PolicyOutput look_at_round(const PolicyInput& input, AccumulationState& state) {
  const std::uint64_t plan = input.plan.id.number;
  if (std::exchange(state.plan, plan) != plan) forget_rounds(state);
  if (const auto cost = sync_cost(input)) add_round(state, *cost);
  const std::uint32_t settle = std::max(1u, input.config.accumulation.settle_rounds);
  return state.rounds >= settle ? judge(input, state) : PolicyOutput{};
}

}  // namespace

std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares) {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    if (ratios[r] == 0) continue;
    auto part = std::max<std::uint64_t>(1, std::llround(static_cast<double>(anchor) * ratios[r]));
    const auto cap = shares.max_samples.find(static_cast<std::int32_t>(r));
    if (cap != shares.max_samples.end()) part = std::min(part, cap->second / job.micro_batch);
    sum += part;
  }
  const std::uint64_t most = std::max<std::uint64_t>(1, kMaxStepSamples / job.micro_batch);
  return std::max(std::min(sum, most), job_micro_batches(job));
}

PolicyOutput AccumulationPolicy::propose(const PolicyInput& input, PolicyState state) const {
  auto mine = state.take_or_fresh<AccumulationState>();
  std::string why = explain_unable(input.job);
  PolicyOutput output = why.empty() ? look_at_round(input, mine) : unable(std::move(why), mine);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

PolicyOutput AccumulationPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  auto mine = state.take_or_fresh<AccumulationState>();
  mine.told_unable = mine.told_capped = false;
  forget_rounds(mine);
  std::string why = explain_unable(input.job);
  PolicyOutput output = why.empty() ? first_batch(input) : unable(std::move(why), mine);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

}  // namespace cox
