// Memory shared by processes of one node through a file that exists only for a moment: the first
// rank makes it, the others map it, and when all have it its name is taken away, so a crash leaves
// nothing behind. Built on a Communicator alone, so it works over any transport.
#pragma once

#include <string>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

// Collective and waiting (start-up only), over ranks of one node. `folder` should be memory
// (/dev/shm). On any rank's failure every rank gets resource_exhausted with that rank's reason: the
// folder, what was wanted, what is free and what to do; the caller can go on without it. Other
// errors are those of the communicator.
Result<SharedSegment> share_file(Communicator& communicator, std::size_t bytes,
                                 const std::string& folder, const WaitPolicy& policy);

}  // namespace cox::transport
