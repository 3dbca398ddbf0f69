#include "coordinator/estimates/slow_findings.h"

#include <algorithm>

namespace cox {
namespace {

// Appends the slowest ranks of the state. Returns how many ranks are in the state.
std::int32_t add_of_state(std::span<const SlowRank> from, SlowState state,
                          std::vector<SlowRank>& told) {
  std::vector<const SlowRank*> found;
  for (const SlowRank& each : from) {
    if (each.state == state) found.push_back(&each);
  }
  const auto most = static_cast<std::ptrdiff_t>(std::min(found.size(), kSlowRanksTold));
  std::ranges::partial_sort(found, found.begin() + most, [](const SlowRank* a, const SlowRank* b) {
    if (a->slowdown_ratio != b->slowdown_ratio) return a->slowdown_ratio > b->slowdown_ratio;
    return a < b;  // equal ones keep their order
  });
  for (const SlowRank* each : std::span(found).first(static_cast<std::size_t>(most))) {
    told.push_back(*each);
  }
  return static_cast<std::int32_t>(found.size());
}

}  // namespace

const SlowRank* SlowFindings::find(RankId rank) const {
  const auto found = std::ranges::find(ranks, rank, &SlowRank::rank);
  return found == ranks.end() ? nullptr : &*found;
}

const SlowRank* SlowFindings::slowest() const {
  const bool is_any = !ranks.empty() && ranks.front().state == SlowState::confirmed;
  return is_any ? &ranks.front() : nullptr;
}

SlowFindings slow_findings(const Slowness& slowness, std::span<const NodeId> node_of_rank) {
  SlowFindings told;
  told.confirmed = add_of_state(slowness.slow, SlowState::confirmed, told.ranks);
  told.suspected = add_of_state(slowness.watched, SlowState::suspected, told.ranks);
  told.recovered = add_of_state(slowness.watched, SlowState::recovered, told.ranks);
  told.job = slowness.pace.slow;
  told.hosts = slow_hosts(slowness, node_of_rank);
  std::ranges::stable_sort(told.hosts, std::ranges::greater{}, &SlowHost::slowdown_ratio);
  told.hosts.resize(std::min(told.hosts.size(), kSlowHostsTold));
  return told;
}

}  // namespace cox
