// Boards: where the control messages of a rank lie, laid out at start-up. Ranks of a node share a
// SignalBoard and a MaskBoard if they can have memory together; otherwise each rank has boards of
// its own (pure MPI). Where there are several nodes their leaders, the lowest rank of each, have an
// exchange, and rank 0 has a second pair of boards for the coordinator's thread:
//
//   one node:       ranks -- boards --> coordinator
//   several nodes:  ranks -- boards --> leader -- LeaderExchange --> rank 0
//                   rank 0 -- its second boards --> coordinator
//
// Where all ranks have a device, masks go another way, from a board that only rank 0 sees:
//
//   coordinator -- rank 0's outbox -- MaskBroadcast (NCCL) --> every rank
//
// The functions are collective and block by polling; they are for the start of a job. A Boards
// value is owned by the rank's ControlPlane; ControlLink and ControlLoop use its members.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/log.h"
#include "coordinator/core/units.h"
#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

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

// BoardPair is a board for reports and one for masks, in one piece of memory.
struct BoardPair {
  transport::SharedSegment memory;
  transport::SignalBoard signals;
  transport::MaskBoard masks;
};

struct Boards {
  Topology topology;
  BoardPair node;                              // of the node's ranks
  std::string path = "mailbox";                // "mailbox", "mpi" or "mailbox+mpi"
  std::unique_ptr<LeaderExchange> exchange{};  // leaders, where there are several nodes
  std::optional<BoardPair> own{};              // the coordinator's, at the root with an exchange

  // Masks over NCCL, on all ranks or none; why not, where they were to go there.
  std::unique_ptr<MaskBroadcast> broadcast{};
  Status no_broadcast{};
  transport::SharedSegment outbox_memory{};
  std::optional<transport::MaskBoard> outbox{};  // at the root with a broadcast

  // Root: where the coordinator reads reports and writes masks.
  transport::SignalBoard& reports() { return own ? own->signals : node.signals; }
  transport::MaskBoard& masks() { return outbox ? *outbox : own ? own->masks : node.masks; }
};

// Returns the size of the largest plan that a job of this size may get, as frames on a board.
std::size_t mask_capacity_bytes(const JobFacts& job);

// Copies rank 0's plan (number 0) to all ranks, as mask frames. REQUIRES: it is valid for `job`.
Result<Plan> broadcast_first_plan(transport::Communicator& world, const JobFacts& job,
                                  const Plan& mine);

Result<Boards> set_up_boards(transport::Communicator& world, NodeGroup& nodes, const JobFacts& job,
                             const ControlConfig& config, const Log& log);

// Adds the broadcast of masks over NCCL where every rank of several has a device (`setup.make_lane`
// is not empty) and control.masks lets it; the settings fill in its limit. Where NCCL cannot be
// had, masks go as without it, with a warning; unavailable on every rank when control.masks=nccl.
// Collective, waits.
Status add_mask_broadcast(transport::Communicator& world, Boards& boards, const JobFacts& job,
                          const ControlConfig& config, MaskBroadcast::Setup setup, const Log& log);

}  // namespace cox::runtime
