#include "coordinator/transport/launch.h"

#include <algorithm>
#include <array>

namespace cox::transport {
namespace {

bool has(std::span<const std::string> environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [&](const std::string& line) {
    return line.size() > name.size() && line.starts_with(name) && line[name.size()] == '=';
  });
}

}  // namespace

Result<Launch> launch_of(std::span<const std::string> environment) {
  // SLURM_PROCID is no sign: batch scripts have it too, and their programs are alone.
  constexpr std::array<std::string_view, 4> kSigns = {"PMI_RANK", "PMI_SIZE", "PMI_FD",
                                                      "PMIX_RANK"};
  const bool open_mpi = has(environment, "OMPI_COMM_WORLD_SIZE");
  if (open_mpi && !has(environment, "PMI_RANK")) {
    return failed_precondition(
        "expected to be started by MPICH's mpiexec or by srun, found Open MPI's launcher "
        "(OMPI_COMM_WORLD_SIZE is set); use mpiexec.mpich");
  }
  for (const std::string_view sign : kSigns) {
    if (has(environment, sign)) return Launch::mpi;
  }
  return Launch::alone;
}

Status check_mpi_library(std::string_view version_text) {
  if (version_text.starts_with("MPICH")) return ok_status();
  const std::string_view line = version_text.substr(0, version_text.find('\n'));
  return failed_precondition("expected the MPI library MPICH, found \"", line,
                             "\"; start with the libraries that the program was built with "
                             "(mpicxx.mpich, mpiexec.mpich)");
}

}  // namespace cox::transport
