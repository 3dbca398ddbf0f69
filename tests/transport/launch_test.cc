#include "coordinator/transport/launch.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

TEST_SUITE_BEGIN("launch");

TEST_CASE("the environment says whether a launcher started the program") {
  struct Row {
    std::vector<std::string> environment;
    Launch expected;
  };
  const std::vector<Row> rows = {
      {{}, Launch::alone},
      {{"HOME=/root", "PMI_RANKS=2", "XPMI_RANK=1"}, Launch::alone},
      {{"SLURM_PROCID=0", "SLURM_NTASKS=8"}, Launch::alone},  // inside a batch script
      {{"PMI_RANK=0", "PMI_SIZE=1"}, Launch::mpi},
      {{"SLURM_PROCID=3", "PMI_FD=7"}, Launch::mpi},
      {{"PMIX_RANK=0"}, Launch::mpi},
      {{"PMI_RANK=0", "OMPI_COMM_WORLD_SIZE=2"}, Launch::mpi},
      {{"SLURM_STEP_NUM_TASKS=4", "PMI_RANK=1"}, Launch::mpi},
      {{"SLURM_STEP_NUM_TASKS=1"}, Launch::alone},  // an interactive shell
      {{"SLURM_STEP_NUM_TASKS=many"}, Launch::alone},
      {{"TORCHELASTIC_RUN_ID=none", "WORLD_SIZE=1"}, Launch::alone},
      {{"WORLD_SIZE=4", "RANK=0"}, Launch::alone},
      {{"TORCHELASTIC_RUN_ID=none", "WORLD_SIZE=4", "PMI_RANK=0"}, Launch::mpi},
  };
  for (const Row& row : rows) {
    const Result<Launch> launch = launch_of(row.environment);
    REQUIRE(launch.ok());
    CHECK(*launch == row.expected);
  }
}

TEST_CASE("Open MPI's launcher is an error that says what to use") {
  const std::vector<std::string> environment = {"OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK=0"};
  const Status status = launch_of(environment).status();
  CHECK(status.code() == StatusCode::failed_precondition);
  CHECK(status.message().find("mpiexec.mpich") != std::string::npos);
}

TEST_CASE("launchers that start several processes without PMI are errors that say what to use") {
  const std::vector<std::string> torchrun = {"WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=none"};
  CHECK(launch_of(torchrun).status().message().find("mpiexec.mpich") != std::string::npos);
  const std::vector<std::string> srun = {"SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4"};
  CHECK(launch_of(srun).status().message().find("srun --mpi=pmi2") != std::string::npos);
}

TEST_CASE("only MPICH's library is accepted, others are named") {
  CHECK(check_mpi_library("MPICH Version:\t4.0.2\nMPICH Release date: ...").ok());
  const Status other = check_mpi_library("Open MPI v4.1.4, package: Debian\nmore");
  CHECK(other.code() == StatusCode::failed_precondition);
  CHECK(other.message().find("\"Open MPI v4.1.4, package: Debian\"") != std::string::npos);
  CHECK_FALSE(check_mpi_library("").ok());
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
