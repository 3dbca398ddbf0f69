// Returns the communicator of a job with one rank: a program started without mpiexec. Every
// operation is done when it is started, and nothing is checked against other ranks. One thread.
#pragma once

#include <memory>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

std::unique_ptr<Communicator> solo_communicator();

}  // namespace cox::transport
