#include "coordinator/core/share_units.h"

#include <algorithm>
#include <numeric>

namespace cox {
namespace {

std::vector<std::uint64_t> even_units(std::uint64_t units, std::size_t ranks) {
  std::vector<std::uint64_t> parts(ranks, units / ranks);
  for (std::size_t r = 0; r < units % ranks; ++r) ++parts[r];
  return parts;
}

}  // namespace

std::vector<std::uint64_t> units_of_shares(std::uint64_t units,
                                           std::span<const std::uint32_t> shares,
                                           std::size_t ranks) {
  if (shares.empty()) return even_units(units, ranks);
  const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  if (all == units) return {shares.begin(), shares.end()};
  std::vector<std::uint64_t> parts;
  std::vector<std::uint64_t> remainders;
  parts.reserve(shares.size());
  remainders.reserve(shares.size());
  for (const std::uint32_t share : shares) {
    parts.push_back(units * share / all);
    remainders.push_back(units * share % all);
  }
  const std::uint64_t left = units - std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  if (left == 0) return parts;
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(left);
  std::nth_element(order.begin(), end - 1, order.end(), [&](std::size_t a, std::size_t b) {
    return remainders[a] != remainders[b] ? remainders[a] > remainders[b] : a < b;
  });
  for (auto it = order.begin(); it != end; ++it) ++parts[*it];
  return parts;
}

std::uint64_t samples_of_step(const JobFacts& job, const Plan& plan) {
  return plan.step_samples != 0 ? plan.step_samples : job.global_batch;
}

std::vector<std::uint64_t> samples_of_ranks(const JobFacts& job, const Plan& plan) {
  const std::uint64_t samples = samples_of_step(job, plan);
  if (job.micro_batch != 0 || samples == 0 || samples > kMaxStepSamples) return {};
  return units_of_shares(samples, plan.shares, job.ranks());
}

}  // namespace cox
