// What the tests of control rounds over real MPI share: a world, workers whose plan changes every
// few rounds, and the comparison of what all ranks had in force.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/transport/communicator.h"
#include "tests/runtime/workers.h"

namespace cox::test {

// A world of its own, from the program's MPI. 0 ranks a node: as the machine has them.
std::unique_ptr<transport::Communicator> mpi_world(std::int32_t ranks_per_node);

// 1,000 rounds under a policy that proposes another plan again and again.
WorkerOptions restless_workers(ControlPath path);

// Collective. Checks that all ranks had the same plan in force in each of 1,000 rounds or more, and
// that it changed.
void expect_agreement(transport::Communicator& world, const WorkerTrace& trace);

// Checks that the journal of a run under `options` gives the same plans when it is decided again.
void expect_replay(const WorkerOptions& options);

}  // namespace cox::test
