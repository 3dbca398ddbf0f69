#include "coordinator/transport/launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace cox::transport {
namespace {

bool has(std::span<const std::string> environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [&](const std::string& line) {
    return line.size() > name.size() && line.starts_with(name) && line[name.size()] == '=';
  });
}

// Returns whether the environment has the variable with a number above 1.
bool is_several(std::span<const std::string> environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [&](const std::string& line) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != '=')
      return false;
    const std::string_view number = std::string_view(line).substr(name.size() + 1);
    int value = 0;
    const auto [end, error] = std::from_chars(number.begin(), number.end(), value);
    return error == std::errc() && end == number.end() && value > 1;
  });
}

// Returns an error when a launcher without PMI started several processes.
Status check_not_parted(std::span<const std::string> environment) {
  if (has(environment, "TORCHELASTIC_RUN_ID") && is_several(environment, "WORLD_SIZE")) {
    return failed_precondition(
        "expected to be started by MPICH's mpiexec or by srun, found torchrun, under which each ",
        "process would be a job of one rank; use mpiexec.mpich -n N");
  }
  // A batch script has SLURM_NTASKS too, but is no step.
  if (is_several(environment, "SLURM_STEP_NUM_TASKS")) {
    return failed_precondition(
        "expected srun with PMI, found srun without, under which each task would be a job of one ",
        "rank; use srun --mpi=pmi2, or unset SLURM_STEP_NUM_TASKS for jobs of one rank each");
  }
  return ok_status();
}

}  // namespace

Result<Launch> launch_of(std::span<const std::string> environment) {
  // SLURM_PROCID is no sign: batch scripts have it too, and start programs of one rank.
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
  if (Status parted = check_not_parted(environment); !parted.ok()) return parted;
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
