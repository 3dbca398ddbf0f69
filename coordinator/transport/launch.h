// Finds out how this process was started, and whether the MPI library fits, before MPI_Init. Pure
// functions; the environment is an argument.
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

// Returns how the process was started. `environment` holds "NAME=value" lines. Returns
// failed_precondition when a launcher without PMI started several processes (Open MPI's mpiexec,
// torchrun, or srun without --mpi). Each such process would otherwise run as a job of one rank.
Result<Launch> launch_of(std::span<const std::string> environment);

// Checks the text of MPI_Get_library_version. Returns failed_precondition unless the library is
// MPICH.
Status check_mpi_library(std::string_view version_text);

}  // namespace cox::transport
