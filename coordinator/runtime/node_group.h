// Finds the ranks that share a node and their leader, at the start of a job. The ranks wait for
// each other for a limited time, and the leader lays out boards in their common memory.
//
// The functions that take a communicator are collective over it and block by polling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::runtime {

// Topology says which ranks share a node and who leads them: the lowest rank of each node.
// Derived once at start-up; equal on all ranks but for `self`. Pure value.
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

// Returns the topology as `self` sees it. `node_of_rank` has the node of every rank, in any
// numbering.
Topology make_topology(RankId self, const std::vector<NodeId>& node_of_rank);

// Returns the way in which ranks wait for each other at start-up, and for how long.
transport::WaitPolicy start_up_patience(const transport::Communicator& communicator);

// NodeGroup has the communicator of this rank's node, as the transport groups ranks
// (control.ranks_per_node included).
struct NodeGroup {
  std::unique_ptr<transport::Communicator> ranks;
  std::vector<NodeId> node_of_rank;  // numbered by the lowest rank on them
};
Result<NodeGroup> find_nodes(transport::Communicator& world);

// Role says what a rank does with a board in common memory.
enum class Role { formats, attaches };

// Returns what make(role) returns: the leader of the node formats a board in common memory, every
// rank learns whether it could, then the others attach.
template <class Make>
auto laid_out(transport::Communicator& node, const Make& make) {
  using Made = decltype(make(Role::formats));
  const bool is_leader = node.rank() == kRoot;
  Made mine = is_leader ? make(Role::formats) : Made(internal_error("not laid out"));
  std::uint64_t is_formatted = mine.ok() ? 1 : 0;
  Status told = broadcast(node, is_formatted, start_up_patience(node));
  if (!told.ok()) return Made(told);
  if (is_leader) return mine;
  if (is_formatted == 1) return make(Role::attaches);
  return Made(unavailable(
      "expected mailboxes laid out by the node's leader, found that it failed; its own message "
      "says why"));
}

}  // namespace cox::runtime
