// Repeats a part of a step that ran out of memory, with blocks that keep less memory. A forward
// pass runs again at once, on this rank alone. Any larger part is repeated with the whole step, on
// all ranks. A backward pass whose offloaded tensors were lost is repeated likewise, with its
// forward pass.
#pragma once

#include <exception>

#include "coxswain/reducer.h"
#include "coxswain/session.h"

namespace cox::detail {

// Returns whether `error` reports that an allocator of torch, of the language or of a device had no
// more memory.
bool is_out_of_memory(const std::exception& error);

// Both functions below are for a handler of `error`, which a part of the open step threw. Call one
// of the functions once the memory of that part is freed. Both functions give blocks the actions
// that hold least, and tell the coordinator, so that a tighter plan follows.
//
// Both rethrow the error if it neither reports a lack of memory nor came from the offload tier.
// Both also rethrow a lack of memory if memory is not planned or the blocks already hold as little
// as possible.
//
// For a forward pass: keeps the reduced actions for the rest of the step, so that the pass can run
// a second time. Local, because no rank waits for another within a forward pass.
void make_room_to_run_again(Session& session, const std::exception& error);
// For any larger part: keeps the reduced actions until the next plan. Asks all ranks to repeat the
// step (Reducer::abandon).
void make_room_to_repeat(Session& session, Reducer& reducer, const std::exception& error);

}  // namespace cox::detail
