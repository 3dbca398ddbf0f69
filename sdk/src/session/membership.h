// Membership is this process as one rank of the job: the ranks that it joined (MPI under mpiexec,
// otherwise itself alone), the configuration that all of them share, what they agree on outside of
// steps, the log and the request to stop. The session makes it first and destroys it last. Training
// thread only.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/config_source.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "coxswain/session.h"
#include "sdk/src/device/device_facts.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/device_link.h"
#include "sdk/src/parallel/node_clocks.h"

namespace cox::detail {

// Termination turns the first SIGTERM or SIGINT into a question that the loop asks, so that a job
// saves and leaves at the end of a step. The signals are taken over when the loop asks for the
// first time (a session whose loop reduces asks at its start): a program that is stuck before that,
// or never asks, ends as any other does.
// The second signal does what it did before it was taken over, which ends most programs, and so
// does a deadline when the loop has not asked again until then (it may be stuck beside a rank that
// does not answer). A signal that the program ignores stays ignored. Signal dispositions belong to
// the process, so one object at a time acts; the handler's few words of state are static in the
// source.
class Termination {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  explicit Termination(std::chrono::seconds patience = kPatience) : patience_(patience) {}
  // Gives the signals back, unless the job was asked to stop: a launcher signals rank after rank,
  // and one that leaves already must not be killed by its own late signal.
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // Returns true from the first signal on. Takes the signals over when it is called for the first
  // time; afterwards it takes nanoseconds.
  bool requested();
  // Notes that another rank was asked, so that a signal that is still to come here asks for nothing
  // new.
  void requested_elsewhere();

 private:
  void take_over();

  const std::chrono::seconds patience_;
  bool is_taken_over_ = false;
  bool requested_ = false;
};

// Puts something between the ranks of a job and their transport: tests see every call of all ranks
// there.
using WrapRanks = std::function<std::unique_ptr<transport::Communicator>(
    std::unique_ptr<transport::Communicator>)>;

// World is the ranks of the job. Under mpiexec they are MPI's (a program's own MPI_Init is
// respected); a program started by hand is a job of one rank and never touches MPI. It owns the
// runtime and the communicator over all ranks. Training thread only.
class World {
 public:
  // Collective under MPI. `wrap_ranks` may be empty.
  static Result<World> join(const ControlConfig& control,
                            const std::vector<std::string>& environment,
                            const WrapRanks& wrap_ranks);

  transport::Communicator& all() const { return *all_; }
  const transport::WaitPolicy& wait_policy() const { return wait_policy_; }
  bool uses_mpi() const { return mpi_.has_value(); }

  // Lets the job end with this process, without finalising MPI, for a rank that fails alone. A
  // program that goes on regardless is ended after a few seconds, one that initialised MPI itself
  // at once. REQUIRES: uses_mpi().
  void end_by_exit();

 private:
  World() = default;

  std::optional<transport::MpiRuntime> mpi_;  // destroyed after the communicator
  std::unique_ptr<transport::Communicator> all_;
  transport::WaitPolicy wait_policy_;
};

// HostFacts is one rank's machine. It has a fixed size, so that it can be gathered.
struct HostFacts {
  char host[64] = {};
  char processor[64] = {};
  std::uint64_t memory_bytes = 0;
  std::int32_t cores = 0;    // usable by this process
  std::int32_t threads = 0;  // that torch computes with
  std::int32_t cuda_devices = 0;
  std::int32_t unused = 0;  // no padding goes over the wire
  char device[64] = {};     // that the rank trains on; empty on the CPU
  std::uint64_t device_bytes = 0;
};

HostFacts this_host();

// Returns lines for people: how many ranks run on which hosts, then what machine they have, one
// line for each kind: "2 ranks on 1 host (node-a: 2)", "all ranks alike: Fast Processor, 8 cores,
// ...". Devices follow likewise, where there are any: "all ranks train on Fast Device, 80.0 GiB".
// Pure.
std::vector<std::string> summary_lines(const std::vector<HostFacts>& hosts);

class Membership {
 public:
  // Joins the job and compares configurations. Collective. Throws cox::Error, on all ranks for what
  // is wrong with the configuration.
  Membership(int argc, const char* const* argv, const SessionOptions& options,
             const WrapRanks& wrap_ranks = {});

  const Config& config() const { return loaded_.config; }
  bool sets_port() const { return loaded_.sets_port; }
  const std::vector<std::string>& arguments() const { return loaded_.rest; }  // left over
  const std::vector<std::string>& environment() const { return environment_; }
  RankId rank() const { return all().rank(); }
  std::int32_t world_size() const { return all().size(); }
  bool is_root() const { return rank() == kRoot; }
  const Log& log() const { return log_; }

  // all() is for agreement and the control plane, data() for what the loop itself exchanges.
  transport::Communicator& all() const { return world_.all(); }
  transport::Communicator& data() const { return *data_; }
  // The clock that all ranks share, so that arrivals can be compared.
  NodeClocks& clocks() { return *clocks_; }
  const NodeClocks& clocks() const { return *clocks_; }
  // Returns the lowest rank of this rank's node. Collective; waits. Throws cox::Error.
  RankId lowest_of_node() const;
  // Returns whether more ranks than cores are on this node.
  bool is_crowded() const { return all().ranks_on_node() > transport::usable_cores(); }
  const transport::WaitPolicy& wait_policy() const { return world_.wait_policy(); }

  // Sets what watches the waits of agree() and gather() from now on: it makes one watcher a wait.
  void attend(std::function<BetweenPolls()> make) { attend_ = std::move(make); }
  // Returns the watcher of a wait that begins now; empty where nobody watches yet.
  BetweenPolls between_polls() const { return attend_ ? attend_() : BetweenPolls(); }

  // Returns the device that this rank trains on (run.device).
  c10::Device device() const { return device_; }

  // Returns what that device is; nothing on the CPU.
  const std::optional<DeviceFacts>& device_facts() const { return device_facts_; }

  // Returns how many ranks, this one included, train on that device; 1 on the CPU.
  std::int32_t ranks_on_device() const { return ranks_on_device_; }
  // How the devices of all ranks reach each other, from the first average of gradients on.
  DeviceLink& devices() const { return *devices_; }

  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  void agree(const Status& mine) const;
  // Returns one number of every rank, in their order. Collective. Throws cox::Error.
  std::vector<std::uint64_t> gather(std::uint64_t mine) const;
  // Returns the ranks whose number differs from rank 0's, as "1, 3"; empty when all are equal.
  // Collective. Throws cox::Error.
  std::string ranks_unlike_root(std::uint64_t mine) const;
  // Logs on rank 0 who is there, and on what. Collective. Throws cox::Error.
  void log_hosts() const;

  Termination& termination() { return termination_; }

  // Leaves the job after an exception. When all ranks fail together they leave quietly. When this
  // one fails alone the others would wait for it for ever, so the job ends: by the exit of this
  // process, which leaves the program time to say what went wrong.
  void leave_after_failure() noexcept;

 private:
  void check_equal_configs() const;
  c10::Device agreed_device() const;
  std::int32_t count_on_device() const;

  std::vector<std::string> environment_;
  Status config_status_;
  io::LoadedConfig loaded_;  // defaults when config_status_ is an error
  Termination termination_;
  World world_;
  c10::Device device_ = c10::Device(c10::DeviceType::CPU);
  std::optional<DeviceFacts> device_facts_;
  std::int32_t ranks_on_device_ = 1;
  std::unique_ptr<transport::Communicator> data_;
  std::unique_ptr<DeviceLink> devices_;
  std::optional<NodeClocks> clocks_;
  std::unique_ptr<transport::Communicator> farewell_;  // used once, by ranks that fail
  Log log_;
  std::function<BetweenPolls()> attend_;
  std::uint64_t ranks_failing_ = 1;  // what farewell_ sums
};

}  // namespace cox::detail
