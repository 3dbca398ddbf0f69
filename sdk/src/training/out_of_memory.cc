#include "sdk/src/training/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"

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

struct Failure {
  std::exception_ptr error;
  std::string what;
};

// Returns what made `body` run out of memory; nothing where it ended. What it had made is gone
// then.
template <class Body>
std::optional<Failure> out_of_memory_in(const Body& body) {
  try {
    body();
    return std::nullopt;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return Failure{std::current_exception(), first_line(error.what())};
  }
}

// Lets the blocks hold less; throws the failure where they cannot.
void make_room(Session& session, MemoryActuator::RoomUntil until, const Failure& failure,
               const char* consequence) {
  const Capabilities& capabilities = session.capabilities();
  if (VisitWatch* visits = capabilities.blocks.visits()) visits->forget_step();
  const bool has_room =
      capabilities.memory.make_room(std::numeric_limits<double>::infinity(), until);
  if (!has_room) std::rethrow_exception(failure.error);
  SessionState& state = session.state();
  state.job().log().warning(concat("step ", state.step().number(), ": out of memory (",
                                   failure.what, "); ", consequence,
                                   ", with blocks that hold less"));
  state.recorder().notes().set(SignalFlag::out_of_memory);
}

}  // namespace

at::Tensor run_within_memory(Session& session, const std::function<at::Tensor()>& forward,
                             const std::function<void()>& put_back) {
  at::Tensor loss;
  const auto failure = out_of_memory_in([&] { loss = forward(); });
  if (!failure) return loss;
  make_room(session, MemoryActuator::RoomUntil::next_step, *failure, "its forward pass runs again");
  put_back();
  return forward();
}

void run_or_repeat_step(Session& session, Reducer& reducer, const std::function<void()>& part) {
  const auto failure = out_of_memory_in(part);
  if (!failure) return;
  make_room(session, MemoryActuator::RoomUntil::next_plan, *failure, "all ranks repeat the step");
  reducer.abandon();
}

}  // namespace cox::detail
