#include "tests/bench/random_shares.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace cox::bench {

// Some ranks get no samples now and then, but never all.
PolicyOutput RandomShares::propose(const PolicyInput& input, PolicyState state) const {
  PolicyOutput output;
  output.state = std::move(state);
  const std::uint64_t round = input.signals.round.value();
  if (round % every_rounds_ != 0) return output;
  std::mt19937_64 random(seed_ ^ (round * 0x9E3779B97F4A7C15ull));
  std::vector<std::uint32_t> shares(static_cast<std::size_t>(input.job.world_size));
  for (std::uint32_t& share : shares) share = static_cast<std::uint32_t>(random() % 5);
  shares[random() % shares.size()] += 1;
  Reason why;
  why.policy = PolicyKind::custom;
  why.code = ReasonCode::custom;
  why.text = "shares at random";
  output.proposals.push_back({SetShares{std::move(shares)}, why});
  return output;
}

}  // namespace cox::bench
