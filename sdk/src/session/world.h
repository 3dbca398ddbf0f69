// World is the ranks of the job and what connects them. Under mpiexec the ranks are MPI's (a
// program's own MPI_Init is respected); a program started by hand is a job of one rank and never
// touches MPI. World owns the runtime, the communicators over all ranks, and the link of their
// devices. Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/device_link.h"

namespace cox::detail {

// Puts something between the ranks of a job and their transport: tests see every call of all ranks
// there.
using WrapRanks = std::function<std::unique_ptr<transport::Communicator>(
    std::unique_ptr<transport::Communicator>)>;

class World {
 public:
  // Joins the ranks. `environment` has entries NAME=value; `wrap_ranks` may be empty. Collective
  // under MPI. Throws cox::Error, on all ranks where the launcher or the MPI library does not fit.
  World(const ControlConfig& control, const std::vector<std::string>& environment,
        const WrapRanks& wrap_ranks);

  // all() is for agreement and the control plane, data() for what the loop itself exchanges.
  transport::Communicator& all() const { return *all_; }
  transport::Communicator& data() const { return *data_; }
  // Returns the link between the devices of all ranks, open from the first average of gradients on.
  DeviceLink& devices() const { return *devices_; }

  // Returns whether more ranks than cores are on this node.
  bool is_crowded() const { return all().ranks_on_node() > transport::usable_cores(); }
  const transport::WaitPolicy& wait_policy() const { return wait_policy_; }

  // Sets what watches the waits for all ranks outside of steps from now on: it makes one watcher a
  // wait.
  void attend(std::function<BetweenPolls()> make) { attend_ = std::move(make); }
  // Returns the watcher of a wait that begins now; empty where nobody watches yet.
  BetweenPolls between_polls() const { return attend_ ? attend_() : BetweenPolls(); }

  // Leaves the job after an exception. When all ranks fail together they leave quietly. When this
  // one fails alone the others would wait for it for ever, so the job ends: by the exit of this
  // process, which leaves the program time to say what went wrong.
  void leave_after_failure(const Log& log) noexcept;

 private:
  void end_by_exit(const Log& log);

  std::optional<transport::MpiRuntime> mpi_;  // destroyed after the communicators
  std::unique_ptr<transport::Communicator> all_;
  std::unique_ptr<transport::Communicator> data_;
  std::unique_ptr<DeviceLink> devices_;
  std::unique_ptr<transport::Communicator> farewell_;  // used once, by ranks that fail
  transport::WaitPolicy wait_policy_;
  std::function<BetweenPolls()> attend_;
  std::uint64_t ranks_failing_ = 1;  // what farewell_ sums
};

}  // namespace cox::detail
