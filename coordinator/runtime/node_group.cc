#include "coordinator/runtime/node_group.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace cox::runtime {
namespace {

using transport::Communicator;

constexpr std::chrono::seconds kStartUpTimeout{120};

}  // namespace

std::size_t Topology::node_index() const {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (std::binary_search(nodes[i].begin(), nodes[i].end(), self)) return i;
  }
  return 0;
}

std::int32_t Topology::slot() const {
  const auto& mine = my_node();
  return static_cast<std::int32_t>(std::lower_bound(mine.begin(), mine.end(), self) - mine.begin());
}

std::size_t Topology::largest_node() const {
  std::size_t largest = 0;
  for (const auto& node : nodes) largest = std::max(largest, node.size());
  return largest;
}

std::int32_t Topology::world_size() const {
  std::size_t ranks = 0;
  for (const auto& node : nodes) ranks += node.size();
  return static_cast<std::int32_t>(ranks);
}

Topology make_topology(RankId self, const std::vector<NodeId>& node_of_rank) {
  std::map<NodeId, std::vector<RankId>> members;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    members[node_of_rank[r]].push_back(RankId(static_cast<std::int32_t>(r)));
  }
  Topology topology;
  topology.self = self;
  for (auto& [node, ranks] : members) topology.nodes.push_back(std::move(ranks));
  std::sort(topology.nodes.begin(), topology.nodes.end(),
            [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return topology;
}

transport::WaitPolicy start_up_patience(const Communicator& communicator) {
  return transport::with_timeout(
      transport::wait_policy(communicator.ranks_on_node(), transport::usable_cores()),
      kStartUpTimeout, "all ranks to start");
}

Result<NodeGroup> find_nodes(Communicator& world) {
  auto ranks = world.split_by_node();
  if (!ranks.ok()) return ranks.status();
  NodeId lowest(world.rank().value());
  if (Status s = broadcast(**ranks, lowest, start_up_patience(**ranks)); !s.ok()) return s;
  auto nodes = all_gather(world, lowest, start_up_patience(world));
  if (!nodes.ok()) return nodes.status();
  return NodeGroup{std::move(*ranks), std::move(*nodes)};
}

}  // namespace cox::runtime
