// Call: one request of a rank to a communicator, as a value. Ranks compare calls and put them into
// messages. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/reduction.h"

namespace cox::transport {

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

enum class Operation : std::uint8_t {
  none = 0,
  gather,
  broadcast,
  all_gather,
  all_reduce,
  reduce,
  duplicate,
  split,
  split_by_node,
  shared_segment,
};
const char* to_string(Operation operation);

struct Call {
  Operation operation = Operation::none;
  std::size_t bytes = 0;          // given by this rank; a segment's size for shared_segment
  RankId root{-1};                // -1 = the operation has none
  std::size_t element_bytes = 0;  // for reductions only
  friend bool operator==(const Call&, const Call&) = default;
};

// Returns "all_reduce of 4096 bytes (elements of 4)".
std::string describe(const Call& call);

// Buffers are the local part of a start_*(): the bytes sent by this rank and the place for the
// result.
struct Buffers {
  ConstBytes send;
  Bytes receive;
};

// Returns invalid_argument when the reduction is incomplete or `bytes` is not a whole number of
// elements.
Status check_reduction(const Reduction& reduction, std::size_t bytes);

}  // namespace cox::transport
