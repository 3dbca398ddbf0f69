// World holds the ranks of the job and their connections. Under mpiexec the ranks are MPI's; a
// program may call MPI_Init itself first. A program started by hand is a job of one rank and never
// calls MPI. World owns the runtime, the communicators over all ranks, and the link between their
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

// WrapRanks wraps the job's communicator in another one, in which tests see every call of all
// ranks.
using WrapRanks = std::function<std::unique_ptr<transport::Communicator>(
    std::unique_ptr<transport::Communicator>)>;

class World {
 public:
  // Joins the ranks. `environment` has entries NAME=value; `wrap_ranks` may be empty. Collective
  // under MPI. Throws cox::Error. All ranks throw if the launcher or the MPI library is
  // unsupported.
  World(const io::LoadedConfig& loaded, const std::vector<std::string>& environment,
        const WrapRanks& wrap_ranks);

  // Returns the identity that each rank sent when it joined, by rank.
  const std::vector<Identity>& identities() const { return identities_; }

  // all() is for agreement and the control plane; data() is for the loop's own exchanges.
  transport::Communicator& all() const { return *all_; }
  transport::Communicator& data() const { return *data_; }
  // Returns the link between the devices of all ranks. The link opens at the first average of
  // gradients.
  DeviceLink& devices() const { return *devices_; }

  // Returns the record of all ranks' calls so far. Null in a job without other ranks to compare
  // with.
  transport::CallBook* calls() const { return mpi_ ? mpi_->calls() : nullptr; }
  // Names the calls of all ranks that begin while the result lives. Messages use the name to
  // distinguish ranks in different calls. If names are nested, the outermost one is used.
  transport::CallBook::Name name_calls(const char* name) const {
    return transport::CallBook::Name(calls(), name);
  }
  // Returns the present name of calls; `otherwise` if they have none.
  const char* name_of_calls(const char* otherwise) const {
    return calls() != nullptr && calls()->is_named() ? calls()->name() : otherwise;
  }
  // Watches waits before the first step. After 10 s, or `limit` if that is shorter, logs a warning
  // that names the missing ranks. Ends the job after `limit`. REQUIRES: `log` outlives the World.
  void watch_start(const Log& log, Seconds limit);

  // Returns whether this node has more ranks than cores.
  bool is_crowded() const { return all().ranks_on_node() > transport::usable_cores(); }
  const transport::WaitPolicy& wait_policy() const { return wait_policy_; }

  // Sets the watcher of waits for all ranks outside of steps. `make` creates one watcher for each
  // wait.
  void attend(std::function<BetweenPolls()> make) { attend_ = std::move(make); }
  // Returns a watcher for a wait that begins now; empty if no watcher is set.
  BetweenPolls between_polls() const { return attend_ ? attend_() : BetweenPolls(); }

  // Leaves the job after an exception. If all ranks fail together, they leave without a message. If
  // only this rank fails, the exit of this process ends the job, because the others would wait for
  // ever. The program still has time to report its error.
  void leave_after_failure(const Log& log) noexcept;
  // Waits for all ranks, a minute at most, and finalises MPI. For a process that exits while the
  // World exists. REQUIRES: nothing is sent afterwards. Collective.
  Status end() { return mpi_ ? mpi_->end() : ok_status(); }
  // Calls `before` when the program calls MPI_Finalize. An empty `before` ends the watch.
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
  std::uint64_t ranks_failing_ = 1;  // number of ranks in the sum over farewell_
  std::vector<Identity> identities_;
};

}  // namespace cox::detail
