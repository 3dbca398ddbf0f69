#include "coordinator/policies/accumulation/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cox {
namespace {

constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 31;  // of a plan
constexpr double kLargestRatio = 1000;

std::uint64_t whole(std::uint64_t samples, std::uint64_t micro_batch) {
  return (samples + micro_batch - 1) / micro_batch;
}

// Policy `shares` moves the work to where the speed is.
bool follows_speeds(const PolicyInput& input) {
  return input.config.shares.mode == PolicyMode::on && input.config.force.shares.empty();
}

RankRatios ratios_of(const Speeds& speeds, const JobFacts& job) {
  RankRatios ratios(static_cast<std::size_t>(job.world_size), 1.0);
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

// A rank's round in parts. Seconds of one round.
struct RankRound {
  double own = 0;
  double communication = 0;
  double optimizer = 0;
  double samples = 0;
};

std::optional<RankRound> round_of(const RankSignal& s) {
  if (s.rounds == 0 || s.samples == 0) return std::nullopt;
  if (s.has(SignalFlag::finished) || s.has(SignalFlag::watching)) return std::nullopt;
  RankRound round;
  double least = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double seconds = s.phase_seconds[p] / static_cast<double>(s.rounds);
    least = std::min(least, seconds);
    if (is_own_work(static_cast<Phase>(p))) round.own += seconds;
    if (static_cast<Phase>(p) == Phase::communication) round.communication = seconds;
    if (static_cast<Phase>(p) == Phase::optimizer) round.optimizer = seconds;
  }
  round.samples = s.samples / static_cast<double>(s.rounds);
  const bool is_usable = least >= 0 && std::isfinite(round.own + round.communication);
  return is_usable && round.own > 0 ? std::optional(round) : std::nullopt;
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
  double optimizer = 0;    // of that one
  double micro_batch = 0;  // the dearest one's seconds, optimizer aside
};

WholeRound whole_round(const PolicyInput& input) {
  WholeRound whole;
  for (const RankSignal& s : input.signals.reports) {
    const auto rank = round_of(s);
    if (!rank) continue;
    const double each = (rank->own - rank->optimizer) / rank->samples;
    whole.sync = std::min(whole.sync, rank->communication);
    whole.micro_batch =
        std::max(whole.micro_batch, each * static_cast<double>(input.job.micro_batch));
    if (rank->own <= whole.work) continue;
    whole.work = rank->own;
    whole.optimizer = rank->optimizer;
  }
  return whole;
}

}  // namespace

RankRatios ratios_of(const Plan& plan, const JobFacts& job) {
  RankRatios ratios(static_cast<std::size_t>(job.world_size), 1.0);
  if (plan.shares.size() != ratios.size()) return ratios;
  std::uint32_t least = 0;  // of those who work
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

std::uint64_t job_micro_batches(const JobFacts& job) {
  return whole(job.global_batch, job.micro_batch);
}

std::uint64_t micro_batches_of(const Plan& plan, const JobFacts& job) {
  return whole(samples_of_step(job, plan), job.micro_batch);
}

double present_anchor(const PolicyInput& input, const RankRatios& ratios) {
  const auto total = static_cast<double>(micro_batches_of(input.plan, input.job));
  return total / std::max(1.0, std::accumulate(ratios.begin(), ratios.end(), 0.0));
}

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
  const std::uint64_t most = std::max<std::uint64_t>(1, kMostSamples / job.micro_batch);
  return std::max(std::min(sum, most), job_micro_batches(job));
}

std::optional<SyncCost> sync_cost(const PolicyInput& input) {
  if (input.summary.reporting == 0 || !is_ordinary(input)) return std::nullopt;
  const WholeRound whole = whole_round(input);
  if (!std::isfinite(whole.sync)) return std::nullopt;
  const double anchor = present_anchor(input, rank_ratios(input));
  // Where work follows speed, each rank's time becomes that of the dearest micro-batches.
  const double each = follows_speeds(input) || anchor == 0
                          ? whole.micro_batch
                          : (whole.work - whole.optimizer) / anchor;
  if (!(each > 0)) return std::nullopt;
  const double target = input.config.accumulation.target_ratio;
  const double room = whole.sync * (1 - target) / target - whole.optimizer;
  return SyncCost{std::clamp(room / each, 0.0, 1e9), whole.sync, whole.work};
}

}  // namespace cox
