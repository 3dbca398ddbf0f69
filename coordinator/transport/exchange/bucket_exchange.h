// BucketExchange: sums arrays over all ranks of a job while the ranks are still computing the next
// ones. The data plane of gradient averaging: the reducer fills a bucket, starts it, goes on with
// backward, and calls advance() now and then. Nothing blocks but create() and wait_all().
//
// Where ranks share a node their buckets lie in one shared segment: once all ranks of the node have
// started a bucket, whoever calls advance() claims its next chunk, adds it up in ascending ranks
// and writes the sum to every rank's bucket, so a rank that is not scheduled stalls nobody. Between
// nodes the leaders add up the nodes' sums, in ascending nodes, over the communicator. Without
// shared memory, whose reason note() tells, the ranks of a node send their buckets to the leader.
// The bits of a sum are the same on every path: those of (r0 + r1 + ...) of node 0, + (...) of node
// 1, and so on.
//
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
  std::size_t chunk_bytes = 0;  // claimed at a time; 0 = chosen by the size of a bucket
  WaitPolicy wait;              // of wait() and of the start
};

// BucketTimes says when a bucket passed the stages of its last round, by this rank's steady clock.
// For telemetry and benchmarks.
struct BucketTimes {
  std::chrono::steady_clock::time_point started{};  // this rank's start()
  std::chrono::steady_clock::time_point done{};     // first seen done here
  std::chrono::nanoseconds worked{0};               // this rank's own adding and copying
};

class BucketExchange {
 public:
  // Collective and blocking; for the start, or when the layout changes. `all` must outlive the
  // exchange. invalid_argument on every rank when buckets or options differ between ranks.
  static Result<std::unique_ptr<BucketExchange>> create(Communicator& all,
                                                        std::vector<BucketSpec> buckets,
                                                        const ExchangeOptions& options);
  virtual ~BucketExchange() = default;

  virtual std::size_t buckets() const = 0;
  // Returns this rank's bucket, aligned to 64 bytes, always at the same address. It holds this
  // rank's part until start() and the sum when done, and must not be touched in between.
  virtual Bytes buffer(std::size_t bucket) = 0;

  // Says that this rank's part of `bucket` is complete. Every rank starts all buckets in ascending
  // order, and all again in the next round, once every bucket of this one is done;
  // failed_precondition otherwise.
  virtual Status start(std::size_t bucket) = 0;

  // Moves on what can be moved without waiting: a few claimed chunks, the leaders' messages.
  // Returns unavailable, naming the rank, when another rank has called leave().
  virtual Status advance() = 0;

  // Returns what the last advance() or wait_all() found. False from the start of the next round on.
  virtual bool is_done(std::size_t bucket) const = 0;
  // Waits until all buckets of the round are done: polls with advance(), then yields, then sleeps
  // on a futex until there is something to do. Calls `pump` now and then meanwhile.
  // failed_precondition where not all buckets were started since the last wait_all().
  virtual Status wait_all(const std::function<void()>& pump) = 0;

  // Says that this rank has failed and takes no further part: the others' calls return unavailable
  // with its number and `why` instead of waiting for ever. Local; reaches ranks of this node at
  // once, others when they have started all buckets of their round.
  virtual void leave(const std::string& why) = 0;

  // Returns the memory of the buckets; a copy of it keeps them readable beyond the exchange.
  virtual SharedSegment memory() const = 0;

  virtual const char* path() const = 0;         // "shared memory", "shared memory and mpi", "mpi"
  virtual const std::string& note() const = 0;  // why there is no shared memory; empty = there is
  virtual BucketTimes times(std::size_t bucket) const = 0;
};

}  // namespace cox::transport
