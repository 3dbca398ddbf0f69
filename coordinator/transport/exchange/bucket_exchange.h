// BucketExchange sums arrays over all ranks of a job while the ranks still compute the next arrays.
// The data plane of gradient averaging (docs/data-parallel.md): the reducer fills a bucket, starts
// it, continues backward, and calls advance() now and then. Only create() and wait_all() block.
// Thread rule: the training thread. Buffers live as long as the exchange or a copy of its memory().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/reduction.h"
#include "coordinator/transport/shared/segment.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

struct BucketSpec {
  std::size_t bytes = 0;  // equal on all ranks; a multiple of reduction.element_bytes
  Reduction reduction;
};

enum class SharedMemory : std::uint8_t { use, avoid };

struct ExchangeOptions {
  SharedMemory shared_memory = SharedMemory::use;
  std::size_t chunk_bytes = 0;  // claimed at a time; 0 = derived from the bucket's size
  WaitPolicy wait;              // for wait() and the start
};

// BucketTimes holds when a bucket passed the stages of its last round, by this rank's steady clock.
// Used by telemetry and benchmarks.
struct BucketTimes {
  std::chrono::steady_clock::time_point started{};  // this rank's start()
  std::chrono::steady_clock::time_point done{};     // when this rank first saw the sum complete
  std::chrono::nanoseconds worked{0};               // this rank's own adding and copying
};

// On a node with shared memory, all buckets lie in one segment. Once all ranks of the node have
// started a bucket, the next advance() of any rank claims a chunk. The rank adds the chunk in
// ascending ranks and writes the sum to every rank's bucket. A rank without a core thus stalls no
// other. Node leaders add the nodes' sums over the communicator, in ascending nodes. Without shared
// memory (note() says why) the ranks of a node send buckets to the leader. Every path gives the
// bits of (r0 + r1 + ...) of node 0, + (...) of node 1, and so on.
class BucketExchange {
 public:
  // Creates the exchange, at the start or after a change of the layout. Collective and blocking.
  // `all` must outlive the exchange. Returns invalid_argument on every rank when buckets or options
  // differ between ranks.
  static Result<std::unique_ptr<BucketExchange>> create(Communicator& all,
                                                        std::vector<BucketSpec> buckets,
                                                        const ExchangeOptions& options);
  virtual ~BucketExchange() = default;

  virtual std::size_t buckets() const = 0;
  // Returns this rank's bucket, aligned to 64 bytes, always at the same address. The bucket holds
  // this rank's part until start(), and the sum when done. Callers must not touch a bucket in
  // between.
  virtual Bytes buffer(std::size_t bucket) = 0;

  // Publishes this rank's part of `bucket` as complete. Every rank starts all buckets in ascending
  // order. The next round starts all buckets again, once every bucket of this round is done.
  // Returns failed_precondition for any other order.
  virtual Status start(std::size_t bucket) = 0;

  // Advances all work that needs no waiting: a few claimed chunks, the leaders' messages. Returns
  // unavailable with the rank's number when another rank has called leave().
  virtual Status advance() = 0;

  // Returns the state that the last advance() or wait_all() found. False from the start of the next
  // round on.
  virtual bool is_done(std::size_t bucket) const = 0;
  // Waits until all buckets of the round are done: polls with advance(), then yields, then sleeps
  // on a futex until there is work. Calls `pump` now and then. Returns failed_precondition if not
  // all buckets were started since the last wait_all().
  virtual Status wait_all(const std::function<void()>& pump) = 0;

  // Withdraws this failed rank from the exchange. Other ranks' calls then return unavailable with
  // this rank's number and `why` instead of waiting for ever. Local. Reaches ranks of this node at
  // once, and other ranks when they have started all buckets of their round.
  virtual void leave(const std::string& why) = 0;

  // Returns the memory of the buckets. A copy keeps the buckets readable beyond the exchange.
  virtual SharedSegment memory() const = 0;

  virtual const char* path() const = 0;         // "shared memory", "shared memory and mpi", "mpi"
  virtual const std::string& note() const = 0;  // why there is no shared memory; empty = there is
  virtual BucketTimes times(std::size_t bucket) const = 0;
};

}  // namespace cox::transport
