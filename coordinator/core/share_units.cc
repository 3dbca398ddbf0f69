#include "coordinator/core/share_units.h"

#include <algorithm>
#include <numeric>

#include "coordinator/core/estimates.h"

namespace cox {

std::vector<std::uint64_t> units_of_shares(std::uint64_t units,
                                           std::span<const std::uint32_t> shares,
                                           std::size_t ranks) {
  const std::vector<std::uint32_t> even(shares.empty() ? ranks : 0, 1);
  if (shares.empty()) shares = even;
  const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  std::vector<std::uint64_t> parts;
  std::vector<std::uint64_t> remainders;
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

std::vector<std::uint64_t> samples_of_ranks(const JobFacts& job, const Plan& plan) {
  const std::uint64_t samples = samples_of_step(job, plan);
  if (job.micro_batch != 0 || samples == 0 || samples > kMaxStepSamples) return {};
  return units_of_shares(samples, plan.shares, job.ranks());
}

}  // namespace cox
