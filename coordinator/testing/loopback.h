// Loopback: the ranks of a job as threads of one process, for tests, for simulation under scripted
// faults, and for finding wrong uses of the transport. It is stricter than MPI: no operation
// completes before all ranks have started it, receive buffers hold garbage until then, and what
// would hang or corrupt under MPI is an error on every rank that names the operation, the ranks and
// what each of them started. Reductions are computed once, in ascending rank order.
//
//   LoopbackWorld world(4);
//   for (int r = 0; r < 4; ++r)
//     threads.emplace_back([&, c = world.communicator(RankId(r))] { ... });
//   ... join ...;  Status used_well = world.verify();
//
// One thread per communicator object. The world need not outlive its communicators, and any thread
// may call it.
#pragma once

#include <chrono>
#include <memory>

#include "coordinator/testing/faults.h"
#include "coordinator/transport/communicator.h"

namespace cox::testing {

struct LoopbackOptions {
  std::int32_t ranks_per_node = 0;  // pretended nodes of that many ranks; 0 = all on one
  std::size_t shared_segment_limit_bytes = std::size_t{1} << 30;         // larger ones are refused
  std::chrono::nanoseconds start_up_timeout = std::chrono::seconds(30);  // of split and the like
  FaultScript faults;
};

class LoopbackState;
class LoopbackHub;

class LoopbackWorld {
 public:
  // REQUIRES: ranks >= 1.
  explicit LoopbackWorld(std::int32_t ranks, LoopbackOptions options = {});

  // Returns the rank's communicator, which may outlive the LoopbackWorld. Call it once per rank.
  std::unique_ptr<transport::Communicator> communicator(RankId rank) const;

  // Returns failed_precondition when a communicator that is destroyed by now left requests in
  // flight, or its ranks did not all start the same number of operations. Names each case.
  Status verify() const;

 private:
  std::shared_ptr<LoopbackState> state_;
  std::shared_ptr<LoopbackHub> hub_;
};

}  // namespace cox::testing
