#include "sdk/src/training/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string_view>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"

namespace cox::detail {

// The allocator of CPU tensors, the libraries below LibTorch's kernels and CUDA itself have no type
// of their own for it.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  constexpr std::string_view kWords[] = {"can't allocate memory", "CUDA error: out of memory",
                                         "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"};
  const std::string_view what = error.what();
  return std::ranges::any_of(kWords, [&](auto words) { return what.find(words) != what.npos; });
}

namespace {

// Returns whether the blocks hold less now. REQUIRES: what ran out of memory has let go of what it
// had made.
bool make_room(SessionState& state, MemoryActuator::RoomUntil until, const std::string& what,
               const char* consequence) {
  if (VisitWatch* visits = state.actuators().get<BlockWatch>().visits()) visits->forget_step();
  const bool has_room = state.actuators().get<MemoryActuator>().make_room(
      std::numeric_limits<double>::infinity(), until);
  if (!has_room) return false;
  state.job().log().warning(concat("step ", state.step().number(), ": out of memory (", what, "); ",
                                   consequence, ", with blocks that hold less"));
  state.step().recorder().flag(SignalFlag::out_of_memory);
  return true;
}

}  // namespace

at::Tensor run_within_memory(SessionState& state, const std::function<at::Tensor()>& forward,
                             const std::function<void()>& put_back) {
  std::exception_ptr failure;
  std::string what;
  try {
    return forward();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    failure = std::current_exception();
    what = first_line(error.what());
  }
  // Here all that the pass had made is gone.
  const bool has_room =
      make_room(state, MemoryActuator::RoomUntil::next_step, what, "its forward pass runs again");
  if (!has_room) std::rethrow_exception(failure);
  put_back();
  return forward();
}

void run_or_repeat_step(SessionState& state, Reducer& reducer, const std::function<void()>& part) {
  std::exception_ptr failure;
  std::string what;
  try {
    return part();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    failure = std::current_exception();
    what = first_line(error.what());
  }
  const bool has_room =
      make_room(state, MemoryActuator::RoomUntil::next_plan, what, "all ranks repeat the step");
  if (!has_room) std::rethrow_exception(failure);
  reducer.abandon();
}

}  // namespace cox::detail
