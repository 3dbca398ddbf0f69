#include "coordinator/transport/call.h"

#include <array>

#include "coordinator/core/text.h"

namespace cox::transport {
const char* to_string(Operation operation) {
  constexpr std::array kNames = {"nothing",       "gather",        "broadcast", "all_gather",
                                 "all_reduce",    "reduce",        "duplicate", "split",
                                 "split_by_node", "shared_segment"};
  return kNames[static_cast<std::size_t>(operation)];
}

std::string describe(const Call& call) {
  std::string text = to_string(call.operation);
  if (call.operation >= Operation::duplicate && call.operation <= Operation::split_by_node) {
    return text;
  }
  text += concat(" of ", call.bytes, " bytes");
  if (call.root.value() >= 0) text += concat(" with root ", call.root.value());
  if (call.element_bytes > 0) text += concat(" (elements of ", call.element_bytes, ")");
  return text;
}

Status check_reduction(const Reduction& reduction, std::size_t bytes) {
  if (reduction.element_bytes == 0 || reduction.apply == nullptr) {
    return invalid_argument("reduction: expected an element size and a function, found none");
  }
  if (bytes % reduction.element_bytes != 0) {
    return invalid_argument("reduction: expected whole elements of ", reduction.element_bytes,
                            " bytes, found a buffer of ", bytes);
  }
  return ok_status();
}

}  // namespace cox::transport
