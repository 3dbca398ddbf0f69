// Loopback: the ranks of a job as threads of one process. For tests, simulation under scripted
// faults, and finding misuse of the transport. One thread per communicator object. The world need
// not outlive its communicators, and any thread may call it.
//
//   LoopbackWorld world(4);
//   for (int r = 0; r < 4; ++r)
//     threads.emplace_back([&, c = world.communicator(RankId(r))] { ... });
//   ... join ...;  Status used_well = world.verify();
#pragma once

#include <chrono>
#include <memory>

#include "coordinator/testing/faults.h"
#include "coordinator/transport/communicator.h"

namespace cox::testing {

struct LoopbackOptions {
  std::int32_t ranks_per_node = 0;  // pretended nodes of this many ranks; 0 = one node
  std::size_t shared_segment_limit_bytes = std::size_t{1} << 30;  // larger segments are refused
  std::chrono::nanoseconds start_up_timeout = std::chrono::seconds(30);  // for blocking calls
  FaultScript faults;
};

class LoopbackState;
class LoopbackHub;

// Stricter than MPI. No operation completes before all ranks have started it, and receive buffers
// hold garbage until then. Ranks in different calls, which would hang or corrupt under MPI, get an
// error on every rank. The error names the operation, the ranks and each rank's call. Reductions
// are computed once, in ascending rank order.
class LoopbackWorld {
 public:
  // REQUIRES: ranks >= 1.
  explicit LoopbackWorld(std::int32_t ranks, LoopbackOptions options = {});

  // Returns the rank's communicator, which may outlive the LoopbackWorld. Call it once per rank.
  std::unique_ptr<transport::Communicator> communicator(RankId rank) const;

  // Returns failed_precondition with each misuse of destroyed communicators: requests left in
  // flight, or ranks that started different numbers of operations.
  Status verify() const;

 private:
  std::shared_ptr<LoopbackState> state_;
  std::shared_ptr<LoopbackHub> hub_;
};

}  // namespace cox::testing
