// MPI's return codes as Status. Includes mpi.h: for mpi_*.cc only.
#pragma once

#include <mpi.h>

#include <string>

#include "coordinator/core/status.h"

namespace cox::transport {

// ok for MPI_SUCCESS; else unavailable with the call's name, `context` (which communicator, which
// peer) and MPI's own text.
Status mpi_status(int code, const char* call, const std::string& context);

}  // namespace cox::transport
