// Boards: the memory for a rank's control messages, laid out at start-up. Ranks of a node share a
// SignalBoard and a MaskBoard if the node has shared memory; otherwise each rank has boards of its
// own (pure MPI). With several nodes the leaders, the lowest rank of each node, have an exchange,
// and rank 0 has a second pair of boards for the coordinator's thread. The functions are collective
// and block by polling, for the start of a job only. The rank's ControlPlane owns the Boards;
// ControlLink and ControlLoop use the members.
//
//   one node:       ranks -- boards --> coordinator
//   several nodes:  ranks -- boards --> leader -- LeaderExchange --> rank 0
//                   rank 0 -- its second boards --> coordinator
//   all on devices: coordinator -- rank 0's outbox -- MaskBroadcast (NCCL) --> every rank
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

// BoardPair is a board for reports and a board for masks, in one segment of memory.
struct BoardPair {
  transport::SharedSegment memory;
  transport::SignalBoard signals;
  transport::MaskBoard masks;
};

struct Boards {
  Topology topology;
  BoardPair node;                              // of the node's ranks
  std::string path = "mailbox";                // "mailbox", "mpi" or "mailbox+mpi"
  std::unique_ptr<LeaderExchange> exchange{};  // leaders only, with several nodes
  std::optional<BoardPair> own{};              // the coordinator's, at the root with an exchange

  // Masks over NCCL, on all ranks or none. The status has the reason if NCCL was wanted and failed.
  std::unique_ptr<MaskBroadcast> broadcast{};
  Status no_broadcast{};
  transport::SharedSegment outbox_memory{};
  std::optional<transport::MaskBoard> outbox{};  // at the root with a broadcast

  // Root: the boards for the coordinator's reports and masks.
  transport::SignalBoard& reports() { return own ? own->signals : node.signals; }
  transport::MaskBoard& masks() { return outbox ? *outbox : own ? own->masks : node.masks; }
};

// Returns the size of the largest possible plan of the job, as frames on a board.
std::size_t mask_capacity_bytes(const JobFacts& job);

// Lays out the boards of a job. Collective; blocks by polling.
Result<Boards> set_up_boards(transport::Communicator& world, NodeGroup& nodes, const JobFacts& job,
                             const ControlConfig& config, const Log& log);

// Adds the broadcast of masks over NCCL if every one of several ranks has a device
// (`setup.make_lane` is not empty) and control.masks allows NCCL. The settings fill in the limit of
// `setup`. If NCCL fails, masks travel by the boards, with a warning; with control.masks=nccl the
// error is unavailable on every rank. Collective; blocks.
Status add_mask_broadcast(transport::Communicator& world, Boards& boards, const JobFacts& job,
                          const ControlConfig& config, MaskBroadcast::Setup setup, const Log& log);

}  // namespace cox::runtime
