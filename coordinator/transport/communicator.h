// Communicator: the seam between Coxswain and the transports that move bytes between ranks: `mpi`,
// `solo` (a job of one rank), and in tests `loopback` (ranks are threads). Data on devices goes
// through nccl/ instead. Every operation is non-blocking and polled: start_*() returns a Request at
// once, test() advances it, and wait() (wait.h) polls until the end. Only the start-up functions
// block. Thread rule: one thread of a rank uses its communicators (MPI_THREAD_FUNNELED).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/call.h"
#include "coordinator/transport/reduction.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::transport {

// Request is the handle of one operation in flight, and belongs to the communicator that returned
// it.
struct Request {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t slot = kNone;
  std::uint32_t generation = 0;
  bool active() const { return slot != kNone; }
};

enum class Progress : std::uint8_t { pending, done };

// Moves a result's value into `into`. Returns the status of `from`.
template <class T>
Status take(Result<T> from, T& into) {
  if (from.ok()) into = *std::move(from);
  return from.status();
}

// Every operation is collective over the communicator's ranks. All ranks must start the same
// operations in the same order with the same sizes. Loopback checks the order; MPI would hang.
// Buffers must stay valid and untouched until test() returns done. Nothing is allocated after the
// largest number of requests in flight was reached once (loopback excepted). REQUIRES: all requests
// are complete before the communicator is destroyed.
//
// Communicator makes the checks that need no other rank, so that a wrong call fails with the same
// message on every transport. Each transport starts and tests checked calls only.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual RankId rank() const = 0;
  virtual std::int32_t size() const = 0;
  // Returns the number of ranks of this communicator on this rank's node, this rank included.
  virtual std::int32_t ranks_on_node() const = 0;
  virtual const char* kind() const = 0;  // "mpi", "solo", "loopback"

  // Gathers to the root, which receives size() x send.size() bytes in rank order. Other ranks'
  // `receive` is ignored.
  Result<Request> start_gather(ConstBytes send, Bytes receive, RankId root);
  // Copies the root's buffer to all ranks. Every rank gives a buffer of the same size.
  Result<Request> start_broadcast(Bytes buffer, RankId root);
  // Gathers to every rank: each receives size() x send.size() bytes in rank order.
  Result<Request> start_all_gather(ConstBytes send, Bytes receive);
  // Reduces in place. On every rank the result has the bits of ((rank0 + rank1) + rank2) + ...,
  // whatever the path or timing. REQUIRES: buffer.size() is a multiple of reduction.element_bytes.
  Result<Request> start_all_reduce(Bytes buffer, const Reduction& reduction);
  // Reduces in place into the root's buffer only, in the same order. Other buffers stay unchanged.
  Result<Request> start_reduce(Bytes buffer, const Reduction& reduction, RankId root);

  // Advances all requests, also those of communicators with a common origin. After `done` or an
  // error, the request is inactive and the caller may use the buffers again. An error is final for
  // the request. Returns done for an inactive request, failed_precondition for another
  // communicator's request.
  virtual Result<Progress> test(Request& request) = 0;

  // Groups the ranks by `color` (>= 0). Ranks keep their order. Collective and blocking (start-up
  // only).
  Result<std::unique_ptr<Communicator>> split(std::int32_t color);
  // Collective and blocking (start-up only).
  virtual Result<std::unique_ptr<Communicator>> duplicate() = 0;
  // Groups the ranks by node: ranks of one node share memory. Collective and blocking (start-up
  // only).
  virtual Result<std::unique_ptr<Communicator>> split_by_node() = 0;
  // Returns zeroed memory shared by all ranks. Collective and blocking (start-up only). REQUIRES:
  // the ranks share a node. Returns resource_exhausted on every rank if one rank cannot map the
  // memory.
  Result<SharedSegment> shared_segment(std::size_t bytes);

 protected:
  // Performs the transport's part of start_*(), split() and shared_segment(). In a broadcast only
  // the root sends. An operation in place sends and receives the same bytes. `reduction` is empty
  // for operations without one.
  virtual Result<Request> start(const Call& call, const Buffers& buffers,
                                const Reduction& reduction) = 0;
  virtual Result<std::unique_ptr<Communicator>> part(std::int32_t color) = 0;
  virtual Result<SharedSegment> share(std::size_t bytes) = 0;

 private:
  Result<Request> checked(const Call& call, const Buffers& buffers);
  Result<Request> reduced(Operation operation, RankId root, Bytes buffer,
                          const Reduction& reduction);
};

}  // namespace cox::transport
