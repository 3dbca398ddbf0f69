#include "coordinator/transport/communicator.h"

#include <functional>

namespace cox::transport {
namespace {

bool overlap(const Buffers& buffers) {
  if (buffers.send.empty() || buffers.receive.empty()) return false;
  const std::less<const std::byte*> before;
  const std::byte* send = buffers.send.data();
  const std::byte* receive = buffers.receive.data();
  return before(send, receive + buffers.receive.size()) &&
         before(receive, send + buffers.send.size());
}

// Returns invalid_argument when the root is not a rank, sizes do not match, or buffers overlap.
// `rank` and `size` belong to the communicator.
Status check_call(const Call& call, const Buffers& buffers, RankId rank, std::int32_t size) {
  const bool rooted = call.operation == Operation::gather ||
                      call.operation == Operation::broadcast || call.operation == Operation::reduce;
  if (rooted && (call.root.value() < 0 || call.root.value() >= size)) {
    return invalid_argument(describe(call), ": expected a root of 0 .. ", size - 1);
  }
  const bool gathers = call.operation == Operation::all_gather ||
                       (call.operation == Operation::gather && rank == call.root);
  if (!gathers) return ok_status();
  const std::size_t expected = call.bytes * static_cast<std::size_t>(size);
  if (buffers.receive.size() != expected) {
    return invalid_argument(describe(call), ": expected a receive buffer of ", expected,
                            " bytes, found ", buffers.receive.size());
  }
  if (overlap(buffers)) {
    return invalid_argument(describe(call), ": expected separate buffers, found an overlap");
  }
  return ok_status();
}

}  // namespace

Result<Request> Communicator::checked(const Call& call, const Buffers& buffers) {
  if (Status fits = check_call(call, buffers, rank(), size()); !fits.ok()) return fits;
  return start(call, buffers, {});
}

Result<Request> Communicator::reduced(Operation operation, RankId root, Bytes buffer,
                                      const Reduction& reduction) {
  const Call call{operation, buffer.size(), root, reduction.element_bytes};
  const Buffers in_place{buffer, buffer};
  if (Status fits = check_reduction(reduction, call.bytes); !fits.ok()) return fits;
  if (Status fits = check_call(call, in_place, rank(), size()); !fits.ok()) return fits;
  return start(call, in_place, reduction);
}

Result<Request> Communicator::start_gather(ConstBytes send, Bytes receive, RankId root) {
  return checked({Operation::gather, send.size(), root}, {send, receive});
}

Result<Request> Communicator::start_broadcast(Bytes buffer, RankId root) {
  const ConstBytes send = rank() == root ? ConstBytes(buffer) : ConstBytes();
  return checked({Operation::broadcast, buffer.size(), root}, {send, buffer});
}

Result<Request> Communicator::start_all_gather(ConstBytes send, Bytes receive) {
  return checked({Operation::all_gather, send.size()}, {send, receive});
}

Result<Request> Communicator::start_all_reduce(Bytes buffer, const Reduction& reduction) {
  return reduced(Operation::all_reduce, RankId(-1), buffer, reduction);
}

Result<Request> Communicator::start_reduce(Bytes buffer, const Reduction& reduction, RankId root) {
  return reduced(Operation::reduce, root, buffer, reduction);
}

Result<std::unique_ptr<Communicator>> Communicator::split(std::int32_t color) {
  if (color >= 0) return part(color);
  return invalid_argument("split: expected a color of 0 or more, found ", color);
}

Result<SharedSegment> Communicator::shared_segment(std::size_t bytes) {
  if (ranks_on_node() == size()) return share(bytes);
  return failed_precondition("shared_segment: expected ranks of one node, found ",
                             size() - ranks_on_node(),
                             " on other nodes; call it on the communicator of split_by_node()");
}

}  // namespace cox::transport
