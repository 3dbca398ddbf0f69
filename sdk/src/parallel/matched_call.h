// Whether all ranks make the same collective call: each shows what it is about to do before it
// starts anything whose size depends on it, so that ranks that differ get an error with names where
// they would hang or mix up each other's numbers. Collective, waiting by polling.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

enum class CallKind : std::uint64_t {
  sync_parameters,
  sync_buffers,
  all_reduce_gradients,
  close,
  refused,  // this rank's arguments were wrong; it takes part only to tell the others
};

// What is compared: the kind, the number of tensors, and their shapes, types and whether they get
// gradients, in order.
struct CallMark {
  CallKind kind = CallKind::close;
  std::uint64_t tensors = 0;
  std::uint64_t layout = 0;
  std::uint64_t place = 0;  // of the very same tensors among those of earlier calls; 0 = no matter
  friend bool operator==(const CallMark&, const CallMark&) = default;
};
CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors);

// "all_reduce_gradients of 4 tensors", "close", "a call that was refused".
std::string text_of(const CallMark& mark);

// invalid_argument with the same text on every rank unless all marks are equal; it says what rank 0
// and each other rank that differs were about to do.
Status check_matched(const std::vector<CallMark>& marks);
Status match_calls(transport::Communicator& ranks, const transport::WaitPolicy& wait,
                   const CallMark& mine);

}  // namespace cox::detail
