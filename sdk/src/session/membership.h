// Membership is this process as one rank of the job. A membership has the joined ranks, their
// shared configuration, the device, agreement outside of steps, the log and the request to stop.
// The session makes the membership first and destroys it last. Training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/config_source.h"
#include "coordinator/io/file_size_signal.h"
#include "coordinator/transport/communicator.h"
#include "coxswain/session.h"
#include "sdk/src/parallel/node_clocks.h"
#include "sdk/src/session/device_place.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/world.h"

namespace cox::detail {

class Membership {
 public:
  // Joins the job and compares configurations. Collective. Throws cox::Error, on all ranks if the
  // configuration is wrong.
  Membership(int argc, const char* const* argv, const SessionOptions& options,
             const WrapRanks& wrap_ranks = {});

  const Config& config() const { return loaded_.config; }
  // Returns the configuration with its unused input: arguments of the program's own.
  const io::LoadedConfig& loaded() const { return loaded_; }
  const std::vector<std::string>& environment() const { return environment_; }  // "NAME=value"
  RankId rank() const { return all().rank(); }
  std::int32_t world_size() const { return all().size(); }
  bool is_root() const { return rank() == kRoot; }
  const Log& log() const { return log_; }

  World& world() const { return *world_; }
  transport::Communicator& all() const { return world_->all(); }
  transport::Communicator& data() const { return world_->data(); }
  // Returns the clock that all ranks share, so that arrivals can be compared.
  NodeClocks& clocks() const { return *clocks_; }
  const DevicePlace& place() const { return place_; }

  // Throws the same cox::Error on all ranks unless `mine` is ok on each. Collective.
  void agree(const Status& mine) const;
  // Returns one number from every rank, in rank order. Collective. Throws cox::Error.
  std::vector<std::uint64_t> gather(std::uint64_t mine) const;

  Termination& termination() { return termination_; }

 private:
  void check_identities() const;

  io::FileSizeSignal file_size_signal_;  // first member, so that it covers every file
  std::vector<std::string> environment_;
  Status config_status_;
  io::LoadedConfig loaded_;  // defaults when config_status_ is an error
  Termination termination_;
  std::unique_ptr<World> world_;
  DevicePlace place_;
  std::unique_ptr<NodeClocks> clocks_;
  Log log_;
};

// Throws cox::Error on all ranks unless all have the same number: "expected EXPECTED on all ranks,
// found a different one from rank 0's on rank 1; ADVICE". Collective.
void check_equal(const Membership& job, std::uint64_t number, const std::string& expected,
                 const std::string& advice);

}  // namespace cox::detail
