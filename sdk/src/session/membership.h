// Membership: this process as one rank of the job: the ranks it joined (MPI under mpiexec,
// otherwise itself alone), the configuration that all of them share, what they agree on outside of
// steps, the log and the request to stop. Made first, gone last. Training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/config_source.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/world.h"

namespace cox::detail {

// Returns the value, or throws the error of this rank.
template <class T>
T require(Result<T> result) {
  if (!result.ok()) throw Error(result.status());
  return std::move(*result);
}

class Membership {
 public:
  // Joins the job and compares configurations. Collective. Throws cox::Error, on all ranks for what
  // is wrong with the configuration.
  Membership(int argc, const char* const* argv, const SessionOptions& options);

  const Config& config() const { return loaded_.config; }
  const std::vector<std::string>& arguments() const { return loaded_.rest; }  // left over
  const std::vector<std::string>& environment() const { return environment_; }
  RankId rank() const { return all().rank(); }
  std::int32_t world_size() const { return all().size(); }
  bool is_root() const { return rank() == kRoot; }
  const Log& log() const { return log_; }

  // For agreement and the control plane; data() is for what the loop itself exchanges.
  transport::Communicator& all() const { return world_.all(); }
  transport::Communicator& data() const { return *data_; }
  const transport::WaitPolicy& wait_policy() const { return world_.wait_policy(); }
  Ranks ranks() const { return {all(), wait_policy()}; }

  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  void agree(const Status& mine) const;
  // Returns one number of every rank, in their order. Collective. Throws cox::Error.
  std::vector<std::uint64_t> gather(std::uint64_t mine) const;
  // Logs on rank 0 who is there, and on what. Collective. Throws cox::Error.
  void log_hosts() const;

  Termination& termination() { return termination_; }

  // For a rank that leaves with an exception. When all ranks fail together they leave quietly; when
  // this one fails alone the others would wait for it for ever, so the job ends: by the exit of
  // this process, which leaves the program time to say what went wrong.
  void leave_after_failure() noexcept;

 private:
  void check_equal_configs() const;

  std::vector<std::string> environment_;
  Status config_status_;
  io::LoadedConfig loaded_;  // defaults when config_status_ is an error
  Termination termination_;
  World world_;
  std::unique_ptr<transport::Communicator> data_;
  std::unique_ptr<transport::Communicator> farewell_;  // used once, by ranks that fail
  Log log_;
  std::uint64_t ranks_failing_ = 1;  // what farewell_ sums
};

}  // namespace cox::detail
