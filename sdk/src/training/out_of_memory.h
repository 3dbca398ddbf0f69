// What runs out of memory is run again with less, where the blocks can hold less: a forward pass at
// once and alone; more than that with the whole step, on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>

#include "coxswain/reducer.h"
#include "coxswain/session.h"

namespace cox::detail {

// Whether an allocator of torch's, of the language or of a device had no more memory.
bool is_out_of_memory(const std::exception& error);

// Runs `forward` and returns its loss. Where it runs out of memory, its blocks get the actions that
// hold least for the rest of the step, `put_back` undoes what the pass wrote (buffers), and it is
// run a second time. The coordinator is told, so that a tighter plan follows. Local: no rank waits
// for another within a forward pass. Throws what `forward` throws; an out-of-memory error where
// memory is not planned, where the blocks hold as little as they can, and the second time.
// REQUIRES: a step is open, and `forward` makes the same random numbers each time.
at::Tensor run_within_memory(Session& session, const std::function<at::Tensor()>& forward,
                             const std::function<void()>& put_back);

// Runs `part` of a step. Where it runs out of memory, its blocks get the actions that hold least
// until there is another plan, the coordinator is told, and all ranks are asked to repeat the step
// (Reducer::abandon). Throws what `part` throws; an out-of-memory error where memory
// is not planned, and where the blocks hold as little as they can. REQUIRES: a step is open.
void run_or_repeat_step(Session& session, Reducer& reducer, const std::function<void()>& part);

}  // namespace cox::detail
