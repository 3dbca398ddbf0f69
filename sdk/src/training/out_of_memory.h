// A part of a step that runs out of memory is run again with less, where the blocks can hold less:
// a forward pass at once and alone; more than that with the whole step, on all ranks. A backward
// pass whose offloaded tensors were lost is such a part too: they are computed again.
#pragma once

#include <exception>

#include "coxswain/reducer.h"
#include "coxswain/session.h"

namespace cox::detail {

// Returns whether an allocator of torch's, of the language or of a device had no more memory.
bool is_out_of_memory(const std::exception& error);

// A handler of `error`, which a part of the open step threw, calls one of these; everything that
// the part had made is gone then. Both give blocks the actions that hold least, and tell the
// coordinator, so that a tighter plan follows. Both rethrow an error that neither is for want of
// memory nor came from the offload tier, and want of memory where it is not planned or the blocks
// hold as little as they can.
//
// For a forward pass: for the rest of the step, so that the pass can run a second time. Local: no
// rank waits for another within a forward pass.
void make_room_to_run_again(Session& session, const std::exception& error);
// For more than that: until there is another plan. All ranks are asked to repeat the step
// (Reducer::abandon).
void make_room_to_repeat(Session& session, Reducer& reducer, const std::exception& error);

}  // namespace cox::detail
