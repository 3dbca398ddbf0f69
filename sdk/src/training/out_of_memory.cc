#include "sdk/src/training/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <string_view>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {

// The allocator of CPU tensors, the libraries below LibTorch's kernels and CUDA itself report a
// lack of memory by text only.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  constexpr std::string_view kWords[] = {"can't allocate memory", "CUDA error: out of memory",
                                         "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"};
  const std::string_view what = error.what();
  return std::ranges::any_of(kWords, [&](auto words) { return what.find(words) != what.npos; });
}

namespace {

// Makes the blocks hold less. Rethrows the handled error if no block can hold less.
void make_room(Session& session, const std::exception& error, MemoryActuator::RoomUntil until,
               const char* consequence) {
  if (!is_out_of_memory(error)) throw;
  const Capabilities& capabilities = session.capabilities();
  if (VisitWatch* visits = capabilities.blocks.visits()) visits->forget_step();
  if (!capabilities.memory.make_room(std::numeric_limits<double>::infinity(), until)) throw;
  SessionState& state = session.state();
  state.job().log().warning(concat("step ", state.step().number(), ": out of memory (",
                                   first_line(error.what()), "); ", consequence,
                                   ", with blocks that keep less memory"));
  state.recorder().notes().set(SignalFlag::out_of_memory);
}

}  // namespace

void make_room_to_run_again(Session& session, const std::exception& error) {
  make_room(session, error, MemoryActuator::RoomUntil::next_step, "its forward pass runs again");
}

void make_room_to_repeat(Session& session, Reducer& reducer, const std::exception& error) {
  const Capabilities& capabilities = session.capabilities();
  if (capabilities.memory.leave_lost_tier()) {
    if (VisitWatch* visits = capabilities.blocks.visits()) visits->forget_step();
    SessionState& state = session.state();
    state.job().log().warning(concat("step ", state.step().number(), ": ", first_line(error.what()),
                                     "; all ranks repeat the step, and this rank offloads nothing "
                                     "from now on"));
  } else {
    make_room(session, error, MemoryActuator::RoomUntil::next_plan, "all ranks repeat the step");
  }
  reducer.abandon();
}

}  // namespace cox::detail
