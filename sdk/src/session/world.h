// World: the ranks of the job. Under mpiexec they are MPI's (a program's own MPI_Init is
// respected); a program started by hand is a job of one rank and never touches MPI. Owns the
// runtime and the communicator over all ranks. Training thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

class World {
 public:
  // Collective under MPI.
  static Result<World> join(const ControlConfig& control,
                            const std::vector<std::string>& environment);

  transport::Communicator& all() const { return *all_; }
  const transport::WaitPolicy& wait_policy() const { return wait_policy_; }
  bool uses_mpi() const { return mpi_.has_value(); }

  // For a rank that fails alone: the job ends with this process, MPI is not finalised. A program
  // that goes on regardless is ended after a few seconds, one that initialised MPI itself at once.
  // Requires: uses_mpi().
  void end_by_exit();

 private:
  World() = default;

  std::optional<transport::MpiRuntime> mpi_;  // destroyed after the communicator
  std::unique_ptr<transport::Communicator> all_;
  transport::WaitPolicy wait_policy_;
};

// The process's environment as "NAME=value" entries.
std::vector<std::string> process_environment();

// The value of `name`, or empty.
std::string value_of(const std::vector<std::string>& environment, const std::string& name);

}  // namespace cox::detail
