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
#include "coordinator/io/config_source.h"
#include "coordinator/transport/call_book.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/mpi/finalize_watch.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/device_link.h"
#include "sdk/src/session/identity.h"

namespace cox::detail {

// Puts something between the ranks of a job and their transport: tests see every call of all ranks
// there.
using WrapRanks = std::function<std::unique_ptr<transport::Communicator>(
    std::unique_ptr<transport::Communicator>)>;

class World {
 public:
  // Joins the ranks. `environment` has entries NAME=value; `wrap_ranks` may be empty. Collective
  // under MPI. Throws cox::Error, on all ranks where the launcher or the MPI library does not fit.
  World(const io::LoadedConfig& loaded, const std::vector<std::string>& environment,
        const WrapRanks& wrap_ranks);

  // Returns who the ranks said they are when they joined, by rank.
  const std::vector<Identity>& identities() const { return identities_; }

  // all() is for agreement and the control plane, data() for what the loop itself exchanges.
  transport::Communicator& all() const { return *all_; }
  transport::Communicator& data() const { return *data_; }
  // Returns the link between the devices of all ranks, open from the first average of gradients on.
  DeviceLink& devices() const { return *devices_; }

  // Returns the calls of all ranks so far, null where a job has no others to compare them with.
  transport::CallBook* calls() const { return mpi_ ? mpi_->calls() : nullptr; }
  // Names the calls of all ranks that begin during the result's life, for messages that tell ranks
  // in different calls apart. The outermost name counts.
  transport::CallBook::Name name_calls(const char* name) const {
    return transport::CallBook::Name(calls(), name);
  }
  // Returns the name that calls have now, or `otherwise`.
  const char* name_of_calls(const char* otherwise) const {
    return calls() != nullptr && calls()->is_named() ? calls()->name() : otherwise;
  }
  // Tells of waits before the first step, which nobody else watches: a warning that names who is
  // missing, and the end of the job beyond the limit. `log` must outlive this.
  void watch_start(const Log& log, Seconds limit);

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
  // Waits for all ranks, a minute at most, and finalises MPI, for a process that exits with this
  // alive: nothing may be sent afterwards. Collective.
  Status end() { return mpi_ ? mpi_->end() : ok_status(); }
  // Calls `before` when the program calls MPI_Finalize from now on; nothing where it is empty.
  void watch_finalize(std::function<void()> before) {
    finalize_watch_.reset();
    if (mpi_ && before)
      finalize_watch_ = std::make_unique<transport::FinalizeWatch>(std::move(before));
  }

 private:
  void end_by_exit(const Log& log);

  std::optional<transport::MpiRuntime> mpi_;  // destroyed after the communicators
  std::unique_ptr<transport::FinalizeWatch> finalize_watch_;
  std::unique_ptr<transport::Communicator> all_;
  std::unique_ptr<transport::Communicator> data_;
  std::unique_ptr<DeviceLink> devices_;
  std::unique_ptr<transport::Communicator> farewell_;  // used once, by ranks that fail
  transport::WaitPolicy wait_policy_;
  std::function<BetweenPolls()> attend_;
  std::uint64_t ranks_failing_ = 1;  // what farewell_ sums
  std::vector<Identity> identities_;
};

}  // namespace cox::detail
