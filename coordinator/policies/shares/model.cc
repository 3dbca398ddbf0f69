#include "coordinator/policies/shares/model.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr std::uint64_t kMaxShare = 1 << 20;  // of a plan
constexpr double kFastest = 1e-12;            // seconds per unit, so that no rank is free

// Units, minima, caps and present units; costs are still missing.
SharesProblem limits_of(const PolicyInput& input) {
  const SharesConfig& config = input.config.shares;
  const auto ranks = static_cast<std::size_t>(input.job.world_size);
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

}  // namespace

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

double gain_ratio(const SharesProblem& shares, double seconds) {
  const double now = shares.slowest.seconds + shares.shared_seconds;
  return now > 0 ? (shares.slowest.seconds - seconds) / now : 0;
}

std::vector<std::size_t> held_ranks(const SharesProblem& shares, const ShareAssignment& assignment,
                                    double worth) {
  ShareProblem free = shares.problem;
  for (RankCost& rank : free.ranks) rank.max_units = kNoUnitCap;
  const auto best = assign_shares(free);
  std::vector<std::size_t> held;
  if (!best.ok() || best->seconds > assignment.seconds * (1 - worth)) return held;
  for (std::size_t r = 0; r < free.ranks.size(); ++r) {
    if (assignment.units[r] == shares.problem.ranks[r].max_units) held.push_back(r);
  }
  return held;
}

std::vector<std::uint32_t> shares_of(const std::vector<std::uint64_t>& units) {
  const std::uint64_t most = *std::max_element(units.begin(), units.end());
  const std::uint64_t divisor = std::max<std::uint64_t>(1, (most + kMaxShare - 1) / kMaxShare);
  std::vector<std::uint32_t> shares;
  for (const std::uint64_t n : units) {
    const std::uint64_t share = std::min((n + divisor / 2) / divisor, kMaxShare);
    shares.push_back(static_cast<std::uint32_t>(n > 0 ? std::max<std::uint64_t>(share, 1) : 0));
  }
  return shares;
}

}  // namespace cox
