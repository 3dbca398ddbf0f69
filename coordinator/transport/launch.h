// Tells how this process was started from its environment, and whether the MPI library fits: the
// questions that come before MPI_Init. Pure functions; the environment is passed in.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::transport {

enum class Launch : std::uint8_t {
  alone = 0,  // by hand: one rank, no MPI needed
  mpi,        // by a launcher that MPICH understands (mpiexec.mpich, srun with pmi2 or pmix)
};

// `environment` holds "NAME=value" lines. failed_precondition when a launcher started several
// processes without PMI, each of which would believe to be alone: Open MPI's, torchrun, or srun
// without --mpi.
Result<Launch> launch_of(std::span<const std::string> environment);

// Takes the text of MPI_Get_library_version. failed_precondition unless it is MPICH's.
Status check_mpi_library(std::string_view version_text);

}  // namespace cox::transport
