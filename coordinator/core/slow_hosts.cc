#include "coordinator/core/slow_hosts.h"

#include <algorithm>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

struct RanksOfNode {
  NodeId node{};
  std::int32_t reporting = 0;
  std::int32_t confirmed = 0;
  std::vector<double> ratios;  // of those that are confirmed or suspected
  std::vector<double> since;

  bool are_all_slow() const {
    const auto slow = static_cast<std::int32_t>(ratios.size());
    return slow >= 2 && slow == reporting && 2 * confirmed >= slow;
  }
};

// Returns the nodes, ascending, with the ranks that report.
std::vector<RanksOfNode> nodes_of(const Slowness& slowness, std::span<const NodeId> node_of_rank) {
  std::vector<NodeId> ids(node_of_rank.begin(), node_of_rank.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<RanksOfNode> nodes;
  for (const NodeId id : ids) nodes.push_back({id, 0, 0, {}, {}});
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto node = std::ranges::lower_bound(nodes, node_of_rank[rank], {}, &RanksOfNode::node);
    node->reporting += slowness.reports[rank] > 0;
  }
  return nodes;
}

void add_slow(std::vector<RanksOfNode>& nodes, std::span<const NodeId> node_of_rank,
              const SlowRank& slow) {
  const NodeId id = node_of_rank[static_cast<std::size_t>(slow.rank.value())];
  const auto node = std::ranges::lower_bound(nodes, id, {}, &RanksOfNode::node);
  node->confirmed += slow.state == SlowState::confirmed;
  node->ratios.push_back(slow.slowdown_ratio);
  node->since.push_back(static_cast<double>(slow.since.value()));
}

}  // namespace

std::vector<SlowHost> slow_hosts(const Slowness& slowness, std::span<const NodeId> node_of_rank) {
  if (slowness.slow.empty() || node_of_rank.size() != slowness.reports.size()) return {};
  std::vector<RanksOfNode> nodes = nodes_of(slowness, node_of_rank);
  for (const SlowRank& slow : slowness.slow) add_slow(nodes, node_of_rank, slow);
  for (const SlowRank& one : slowness.watched) {
    if (one.state == SlowState::suspected) add_slow(nodes, node_of_rank, one);
  }
  std::vector<SlowHost> hosts;
  for (const RanksOfNode& node : nodes) {
    if (nodes.size() < 2 || !node.are_all_slow()) continue;
    hosts.push_back({node.node, node.reporting,
                     RoundId(static_cast<std::uint64_t>(median_of(node.since))),
                     median_of(node.ratios)});
  }
  return hosts;
}

}  // namespace cox
