// NodeClocks gives moments of this rank's steady clock on rank 0's clock, so that arrivals of ranks
// on several nodes can be compared. The lowest rank of each node exchanges messages with rank 0, at
// the start and now and then afterwards, and tells the others of its node; what the exchanges bound
// is the error that goes with every moment (coordinator/core/arrival.h). In a job of one node there
// is nothing to compare. Owned by the session; training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "coordinator/core/arrival.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

class NodeClocks {
 public:
  // The node's clock in nanoseconds, equal for all its ranks.
  using ReadClock = std::function<std::int64_t()>;
  static constexpr int kExchanges = 8;  // a comparison

  // Compares the clocks for the first time. Collective and waiting. `read` replaces the steady
  // clock, for tests.
  static Result<NodeClocks> make(transport::Communicator& ranks, ReadClock read = {});

  // Compares again, in some 20 message times. Exchanges that contradict each other leave the clocks
  // unknown until the next time. Collective; waits, and calls `pump` between polls: what it throws
  // ends the wait.
  Status compare(const BetweenPolls& pump);

  // Returns the present moment by rank 0's clock.
  ArrivalStamp stamp() const { return model_.stamp(read_()); }
  // Returns how far stamp() may be off now; not known = -1.
  Seconds error() const;
  bool is_due() const { return model_.is_due(read_()); }

 private:
  NodeClocks(ClockModel model, ReadClock read) : model_(model), read_(std::move(read)) {}
  Result<ClockOffset> exchange(const BetweenPolls& pump) const;

  ClockModel model_;
  ReadClock read_;
  std::unique_ptr<transport::Communicator> node_;     // where there are several
  std::unique_ptr<transport::Communicator> leaders_;  // there, on the lowest rank of each
};

}  // namespace cox::detail
