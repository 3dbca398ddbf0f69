// How a rank's boards are laid out at start-up: shared with the ranks of its node if they can have
// memory together, private otherwise (pure MPI), with an exchange between leaders where there are
// several nodes. Collective, blocking by polling; start-up only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/log.h"
#include "coordinator/runtime/leader_exchange.h"
#include "coordinator/runtime/start_agreement.h"
#include "coordinator/runtime/topology.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

struct Boards {
  const char* path = "mailbox";  // "mailbox", "mpi" or "mailbox+mpi"
  Topology topology;
  transport::SharedSegment memory;  // of the node's two boards
  std::optional<transport::SignalBoard> signals;
  std::optional<transport::MaskBoard> masks;
  std::unique_ptr<LeaderExchange> exchange;  // leaders, where there are several nodes

  // Root with an exchange: the coordinator's own boards.
  transport::SharedSegment coordinator_memory;
  std::optional<transport::SignalBoard> inbox;
  std::optional<transport::MaskBoard> outbox;

  // Root: where the coordinator reads and writes.
  transport::SignalBoard* coordinator_inbox() { return inbox ? &*inbox : &*signals; }
  transport::MaskBoard* coordinator_outbox() { return outbox ? &*outbox : &*masks; }
};

// The masks of the largest plan that a job of this size may get.
std::size_t mask_capacity_bytes(const JobFacts& job);

Result<Boards> set_up_boards(transport::Communicator& world, NodeGroup& nodes, const JobFacts& job,
                             const ControlConfig& config, const Log& log);

}  // namespace cox::runtime
