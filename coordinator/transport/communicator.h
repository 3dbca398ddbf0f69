// Communicator: the seam between Coxswain and what moves bytes between ranks: `mpi`, `solo` (a job
// of one rank), and in tests `loopback` (ranks are threads). Data on devices goes another way
// (nccl/). Every operation is
// collective over the communicator's ranks, non-blocking and polled: start_*() returns a Request at
// once, test() moves it on. All ranks must start the same operations in the same order with the
// same sizes; loopback checks that, MPI would hang. Buffers must stay valid and untouched until
// test() says done.
//
// Thread rule: one thread of a rank uses its communicators (MPI_THREAD_FUNNELED). Nothing here
// blocks; wait() (wait.h) polls. Allocates nothing once as many requests were in flight as ever
// will be (loopback excepted). REQUIRES: all requests are complete before the communicator is
// destroyed.
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

// Request is the handle of one operation in flight. It belongs to the communicator that returned
// it.
struct Request {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t slot = kNone;
  std::uint32_t generation = 0;
  bool active() const { return slot != kNone; }
};

enum class Progress : std::uint8_t { pending, done };

// Moves a result to where it is kept. Returns why there is none.
template <class T>
Status take(Result<T> from, T& into) {
  if (from.ok()) into = *std::move(from);
  return from.status();
}

// Communicator checks what needs no other rank, so that a wrong call fails in the same words on
// every transport. Each transport starts and tests checked calls.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual RankId rank() const = 0;
  virtual std::int32_t size() const = 0;
  // Returns how many ranks of this communicator run on this rank's node, this one included.
  virtual std::int32_t ranks_on_node() const = 0;
  virtual const char* kind() const = 0;  // "mpi", "solo", "loopback"

  // Root receives size() x send.size() bytes in rank order; `receive` is ignored elsewhere.
  Result<Request> start_gather(ConstBytes send, Bytes receive, RankId root);
  // Every rank gives a buffer of the same size; root's is copied to all.
  Result<Request> start_broadcast(Bytes buffer, RankId root);
  // Every rank receives size() x send.size() bytes in rank order.
  Result<Request> start_all_gather(ConstBytes send, Bytes receive);
  // In place. The result has the bits of ((rank0 + rank1) + rank2) + ... on every rank, whatever
  // path or timing. REQUIRES: buffer.size() is a multiple of reduction.element_bytes.
  Result<Request> start_all_reduce(Bytes buffer, const Reduction& reduction);
  // In place into root's buffer only, in the same order; other buffers are left as they were.
  Result<Request> start_reduce(Bytes buffer, const Reduction& reduction, RankId root);

  // Moves all requests on, also those of communicators with a common origin. After `done` (or an
  // error) the request is reset to inactive and its buffers are free. An error is final for the
  // request. An inactive request is done; failed_precondition for one of another communicator.
  virtual Result<Progress> test(Request& request) = 0;

  // Collective and waiting (start-up only). `color` (>= 0) groups ranks; ranks keep their order.
  Result<std::unique_ptr<Communicator>> split(std::int32_t color);
  virtual Result<std::unique_ptr<Communicator>> duplicate() = 0;
  // Groups the ranks by the node whose memory they share. Collective and waiting (start-up only).
  virtual Result<std::unique_ptr<Communicator>> split_by_node() = 0;
  // Returns zeroed memory seen by all ranks. Collective and waiting (start-up only). REQUIRES: the
  // ranks share a node. resource_exhausted on every rank when one of them cannot have it.
  Result<SharedSegment> shared_segment(std::size_t bytes);

 protected:
  // The transport's part of start_*(), split() and shared_segment(). In a broadcast only the root
  // sends; what works in place sends and receives the same bytes. `reduction` is empty where there
  // is none.
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
