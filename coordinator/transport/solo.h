// The communicator of a job with one rank: a program started without mpiexec. Every operation is
// complete when it starts. No check involves other ranks. One thread.
#pragma once

#include <memory>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

std::unique_ptr<Communicator> solo_communicator();

}  // namespace cox::transport
