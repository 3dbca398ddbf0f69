// Shared parts of the tests of control rounds over real MPI: a world, workers with frequent new
// plans, and a comparison of the plans in force on all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/transport/communicator.h"
#include "tests/runtime/workers.h"

namespace cox::test {

// Returns a new world, from the program's MPI. 0 ranks a node: as on the machine.
std::unique_ptr<transport::Communicator> mpi_world(std::int32_t ranks_per_node);

// Returns options for 1,000 rounds under a policy that keeps proposing new plans.
WorkerOptions restless_workers(ControlPath path);

// Checks that all ranks had the same plan in force in each of 1,000 rounds or more, and that the
// plan changed. Collective.
void expect_agreement(transport::Communicator& world, const WorkerTrace& trace);

// Checks that replaying the journal of a run under `options` gives the same plans.
void expect_replay(const WorkerOptions& options);

}  // namespace cox::test
