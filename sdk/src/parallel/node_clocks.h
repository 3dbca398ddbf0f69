// NodeClocks converts this rank's steady clock to rank 0's clock, so that arrivals of ranks on
// several nodes can be compared. The lowest rank of each node exchanges messages with rank 0, at
// the start and now and then afterwards, and informs its node. The exchanges bound the error of
// every moment (coordinator/core/arrival.h). A job of one node compares nothing. Owned by the
// session; training thread only.
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
  // Returns the node's clock in nanoseconds, equal for all its ranks.
  using ReadClock = std::function<std::int64_t()>;
  static constexpr int kExchanges = 8;  // in a comparison

  // Compares the clocks for the first time. Collective and waiting. `read` replaces the steady
  // clock in tests.
  static Result<NodeClocks> make(transport::Communicator& ranks, ReadClock read = {});

  // Compares again, in some 20 message times. After contradictory exchanges the clocks are unknown
  // until the next time. Collective; waits, and calls `pump` between polls. An exception from
  // `pump` ends the wait.
  Status compare(const BetweenPolls& pump);

  // Returns the present moment by rank 0's clock.
  ArrivalStamp stamp() const { return model_.stamp(read_()); }
  // Returns the current error bound of stamp(); -1 = unknown.
  Seconds error() const;
  bool is_due() const { return model_.is_due(read_()); }

 private:
  NodeClocks(ClockModel model, ReadClock read) : model_(model), read_(std::move(read)) {}
  Result<ClockOffset> exchange(const BetweenPolls& pump) const;

  ClockModel model_;
  ReadClock read_;
  std::unique_ptr<transport::Communicator> node_;     // null on a single node
  std::unique_ptr<transport::Communicator> leaders_;  // on the lowest rank of each of several nodes
};

}  // namespace cox::detail
