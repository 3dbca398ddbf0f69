// Topology: which ranks share a node, and who speaks for them. The leader of a node is its lowest
// rank. Derived once at start-up; equal on all ranks. Pure value.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/units.h"

namespace cox::runtime {

struct Topology {
  std::vector<std::vector<RankId>> nodes;  // ascending ranks; nodes in order of their leaders
  RankId self{};

  std::size_t node_index() const;  // of self
  const std::vector<RankId>& my_node() const { return nodes[node_index()]; }
  std::int32_t slot() const;  // of self within its node
  bool is_leader() const { return my_node().front() == self; }
  std::size_t largest_node() const;  // ranks
  std::int32_t world_size() const;
};

// From the node of every rank (any numbering).
Topology make_topology(RankId self, const std::vector<NodeId>& node_of_rank);

}  // namespace cox::runtime
