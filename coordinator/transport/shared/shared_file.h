// Shares memory between the processes of a node through a file in a folder such as /dev/shm. The
// mpi transport creates its shared segments here.
#pragma once

#include <cstddef>
#include <string>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

// Returns zeroed memory shared by the processes of one node. Collective over one node, blocking
// (start-up only). Rank 0 creates a file in `folder`, which should be in memory (/dev/shm). The
// other ranks map the file, and rank 0 removes the file's name when all have mapped it. Each call
// also removes files of killed processes.
//
// If any rank fails, every rank gets resource_exhausted with that rank's reason: the folder, the
// size wanted, the size free and a remedy. The caller can continue without the memory. Other errors
// are those of the communicator.
Result<SharedSegment> share_file(Communicator& communicator, std::size_t bytes,
                                 const std::string& folder, const WaitPolicy& policy);

}  // namespace cox::transport
