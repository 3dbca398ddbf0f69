#include "coordinator/transport/call.h"

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

Status wrong_size(const Call& call, const char* buffer, std::size_t expected, std::size_t found) {
  return invalid_argument(describe(call) + ": expected a " + buffer + " buffer of " +
                          std::to_string(expected) + " bytes, found " + std::to_string(found));
}

// Bytes that this rank must be ready to receive beside what it gives.
std::size_t receive_bytes(const Call& call, RankId rank, std::int32_t size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (call.operation == Operation::gather && rank == call.root) return call.bytes * ranks;
  if (call.operation == Operation::all_gather) return call.bytes * ranks;
  if (call.operation == Operation::reduce_scatter) return call.bytes / ranks;
  return 0;
}

bool receives_elsewhere(const Call& call, RankId rank) {
  return call.operation == Operation::all_gather || call.operation == Operation::reduce_scatter ||
         (call.operation == Operation::gather && rank == call.root);
}

}  // namespace

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "nothing";
    case Operation::gather:
      return "gather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::duplicate:
      return "duplicate";
    case Operation::split:
      return "split";
    case Operation::split_by_node:
      return "split_by_node";
    case Operation::shared_segment:
      return "shared_segment";
  }
  return "unknown operation";
}

std::string describe(const Call& call) {
  std::string text = to_string(call.operation);
  if (call.operation >= Operation::duplicate && call.operation <= Operation::split_by_node) {
    return text;
  }
  text += " of " + std::to_string(call.bytes) + " bytes";
  if (call.root.value() >= 0) text += " with root " + std::to_string(call.root.value());
  if (call.element_bytes > 0) text += " (elements of " + std::to_string(call.element_bytes) + ")";
  return text;
}

Status check_call(const Call& call, const Buffers& buffers, RankId rank, std::int32_t size) {
  const bool rooted = call.operation == Operation::gather ||
                      call.operation == Operation::broadcast || call.operation == Operation::reduce;
  if (rooted && (call.root.value() < 0 || call.root.value() >= size)) {
    return invalid_argument(describe(call) + ": expected a root of 0 .. " +
                            std::to_string(size - 1));
  }
  if (call.operation == Operation::reduce_scatter &&
      call.bytes % (static_cast<std::size_t>(size) * call.element_bytes) != 0) {
    return invalid_argument(describe(call) + ": expected " + std::to_string(size) +
                            " equal parts of whole elements; pad the buffer");
  }
  if (!receives_elsewhere(call, rank)) return ok_status();
  const std::size_t expected = receive_bytes(call, rank, size);
  if (buffers.receive.size() != expected) {
    return wrong_size(call, "receive", expected, buffers.receive.size());
  }
  if (overlap(buffers)) {
    return invalid_argument(describe(call) + ": expected separate buffers, found an overlap");
  }
  return ok_status();
}

Status check_reduction(const Reduction& reduction, std::size_t bytes) {
  if (reduction.element_bytes == 0 || reduction.apply == nullptr) {
    return invalid_argument("reduction: expected an element size and a function, found none");
  }
  if (bytes % reduction.element_bytes != 0) {
    return invalid_argument("reduction: expected whole elements of " +
                            std::to_string(reduction.element_bytes) + " bytes, found a buffer of " +
                            std::to_string(bytes));
  }
  return ok_status();
}

Status check_color(std::int32_t color) {
  if (color >= 0) return ok_status();
  return invalid_argument("split: expected a color of 0 or more, found " + std::to_string(color));
}

}  // namespace cox::transport
