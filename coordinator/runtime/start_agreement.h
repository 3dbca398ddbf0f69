// What the ranks of a job settle before the first round: who shares a node, which incarnation this
// is, from which round on it counts, and the plan that everybody starts with. Collective, blocking
// by polling; start-up only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::runtime {

// How long, and how, ranks wait for each other at start-up.
transport::WaitPolicy start_up_patience(const transport::Communicator& communicator);

// What every rank learns from rank 0.
struct StartFacts {
  std::uint32_t incarnation = 1;
  RoundId first_round{};
};

// The communicator of this rank's node, as the transport has it (control.ranks_per_node included).
struct NodeGroup {
  std::unique_ptr<transport::Communicator> ranks;
  std::vector<NodeId> node_of_rank;  // numbered by the lowest rank on them
};
Result<NodeGroup> find_nodes(transport::Communicator& world);

// Copies rank 0's value to all ranks.
Result<StartFacts> broadcast_start(transport::Communicator& world, StartFacts mine);

// Copies rank 0's plan (number 0) to all ranks, as mask frames. Requires: it is valid for `job`.
Result<Plan> broadcast_first_plan(transport::Communicator& world, const JobFacts& job,
                                  const Plan& mine);

}  // namespace cox::runtime
