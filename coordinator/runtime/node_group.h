// Finds the ranks of each node and the node's leader, at the start of a job. Ranks wait for each
// other for a limited time, and the leader lays out boards in shared memory. Functions with a
// communicator are collective and block by polling.
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

// Topology says which ranks share a node, and which rank leads the node: the lowest. Made once at
// start-up; equal on all ranks except for `self`. Pure value.
struct Topology {
  std::vector<std::vector<RankId>> nodes;  // ascending ranks; nodes in order of their leaders
  RankId self{};

  std::size_t node_index() const;  // index of self's node
  const std::vector<RankId>& my_node() const { return nodes[node_index()]; }
  std::int32_t slot() const;  // index of self within its node
  bool is_leader() const { return my_node().front() == self; }
  std::size_t largest_node() const;  // in ranks
  std::int32_t world_size() const;
};

// Returns the topology of rank `self`. `node_of_rank` has the node of every rank, in any numbering.
Topology make_topology(RankId self, const std::vector<NodeId>& node_of_rank);

// Returns the way in which ranks wait for each other at start-up, and the limit.
transport::WaitPolicy start_up_patience(const transport::Communicator& communicator);

// NodeGroup has the communicator of the rank's node, as the transport groups ranks
// (control.ranks_per_node included).
struct NodeGroup {
  std::unique_ptr<transport::Communicator> ranks;
  std::vector<NodeId> node_of_rank;  // numbered by the node's lowest rank
};
Result<NodeGroup> find_nodes(transport::Communicator& world);

// Role is a rank's part in making a board in shared memory.
enum class Role { formats, attaches };

// Returns the result of make(role). The leader of the node formats a board in shared memory, every
// rank learns whether the leader succeeded, then the others attach.
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
  return Made(
      unavailable("expected mailboxes laid out by the node's leader, found that the leader failed; "
                  "the leader's log has the cause"));
}

}  // namespace cox::runtime
