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

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/log.h"
#include "coordinator/core/units.h"
#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/runtime/node_group.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

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

Result<Boards> set_up_boards(transport::Communicator& world, NodeGroup& nodes, const JobFacts& job,
                             const ControlConfig& config, const Log& log);

// Adds the broadcast of masks over NCCL where every rank of several has a device (`setup.make_lane`
// is not empty) and control.masks lets it; the settings fill in its limit. Where NCCL cannot be
// had, masks go as without it, with a warning; unavailable on every rank when control.masks=nccl.
// Collective, waits.
Status add_mask_broadcast(transport::Communicator& world, Boards& boards, const JobFacts& job,
                          const ControlConfig& config, MaskBroadcast::Setup setup, const Log& log);

}  // namespace cox::runtime
