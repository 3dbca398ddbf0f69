// Shares memory between the processes of a node through a file in a folder such as /dev/shm. The
// mpi transport makes its shared segments this way.
#pragma once

#include <cstddef>
#include <string>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

// Returns zeroed memory shared by the processes of one node, through a file that exists only for a
// moment: rank 0 creates it, the others map it, and its name is removed when all have it; what
// killed processes left the next call removes. Collective over one node, waiting (start-up only).
// `folder` should be memory (/dev/shm). When any rank fails, every rank gets resource_exhausted
// with that rank's reason: the folder, the size wanted, the size free and what to do; the caller
// can go on without the memory. Other errors are those of the communicator.
Result<SharedSegment> share_file(Communicator& communicator, std::size_t bytes,
                                 const std::string& folder, const WaitPolicy& policy);

}  // namespace cox::transport
