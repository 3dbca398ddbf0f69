// The communicator of a job with one rank: a program started without mpiexec. Every operation is
// done when it is started; nothing is shared, copied twice or checked against others. One thread.
#pragma once

#include <memory>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

std::unique_ptr<Communicator> solo_communicator();

}  // namespace cox::transport
