#include "coordinator/estimates/slow_hosts.h"

#include <algorithm>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

struct RanksOfNode {
  NodeId node{};
  std::int32_t reporting = 0;
  std::int32_t confirmed = 0;
  std::vector<double> ratios;  // of ranks that are confirmed or suspected
  std::vector<double> since;

  bool are_all_slow() const {
    const auto slow = static_cast<std::int32_t>(ratios.size());
    return slow == reporting && 2 * confirmed >= slow;
  }
};

RanksOfNode& node_of(std::vector<RanksOfNode>& nodes, NodeId id) {
  const auto at = std::ranges::lower_bound(nodes, id, {}, &RanksOfNode::node);
  return at != nodes.end() && at->node == id ? *at : *nodes.insert(at, {id, 0, 0, {}, {}});
}

void add_slow(std::vector<RanksOfNode>& nodes, NodeId id, const SlowRank& slow) {
  RanksOfNode& node = node_of(nodes, id);
  node.confirmed += slow.state == SlowState::confirmed;
  node.ratios.push_back(slow.slowdown_ratio);
  node.since.push_back(static_cast<double>(slow.since.value()));
}

// Returns the nodes, ascending, on which two ranks or more are confirmed or suspected.
std::vector<RanksOfNode> slow_nodes(const Slowness& slowness,
                                    std::span<const NodeId> node_of_rank) {
  const auto node_of_slow = [&](const SlowRank& slow) {
    return node_of_rank[static_cast<std::size_t>(slow.rank.value())];
  };
  std::vector<RanksOfNode> nodes;
  for (const SlowRank& slow : slowness.slow) add_slow(nodes, node_of_slow(slow), slow);
  for (const SlowRank& one : slowness.watched) {
    if (one.state == SlowState::suspected) add_slow(nodes, node_of_slow(one), one);
  }
  std::erase_if(nodes, [](const RanksOfNode& node) { return node.ratios.size() < 2; });
  return nodes;
}

void count_reporting(const Slowness& slowness, std::span<const NodeId> node_of_rank,
                     std::vector<RanksOfNode>& nodes) {
  for (std::size_t rank = 0; rank < node_of_rank.size() && !nodes.empty(); ++rank) {
    const NodeId id = node_of_rank[rank];
    const auto node = std::ranges::lower_bound(nodes, id, {}, &RanksOfNode::node);
    if (node != nodes.end() && node->node == id) node->reporting += slowness.reports[rank] > 0;
  }
}

}  // namespace

std::vector<SlowHost> slow_hosts(const Slowness& slowness, std::span<const NodeId> node_of_rank) {
  if (slowness.slow.empty() || node_of_rank.size() != slowness.reports.size()) return {};
  const auto is_only = [&](NodeId node) { return node == node_of_rank.front(); };
  if (std::ranges::all_of(node_of_rank, is_only)) return {};
  std::vector<RanksOfNode> nodes = slow_nodes(slowness, node_of_rank);
  count_reporting(slowness, node_of_rank, nodes);
  std::vector<SlowHost> hosts;
  for (const RanksOfNode& node : nodes) {
    if (!node.are_all_slow()) continue;
    hosts.push_back({node.node, node.reporting,
                     RoundId(static_cast<std::uint64_t>(median_of(node.since))),
                     median_of(node.ratios)});
  }
  return hosts;
}

}  // namespace cox
