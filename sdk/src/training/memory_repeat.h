// A forward pass that runs out of memory is run again with less, where the blocks can hold less.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>

#include "sdk/src/session/session_state.h"

namespace cox::detail {

// Whether an allocator of torch's or of the language had no more memory.
bool is_out_of_memory(const std::exception& error);

// Runs `forward` and returns its loss. Where it runs out of memory, its blocks get the actions that
// hold least for the rest of the step, `put_back` undoes what the pass wrote (buffers), and it is
// run a second time. The coordinator is told, so that a tighter plan follows. Local: no rank waits
// for another within a forward pass. Throws what `forward` throws; an out-of-memory error where
// memory is not planned, where the blocks hold as little as they can, and the second time.
// REQUIRES: a step is open, and `forward` makes the same random numbers each time.
at::Tensor run_within_memory(SessionState& state, const std::function<at::Tensor()>& forward,
                             const std::function<void()>& put_back);

}  // namespace cox::detail
