#include "coxswain/detail/observation.h"

#include <utility>

#include "coxswain/detail/memory_call.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_call.h"

namespace cox::detail {
namespace {

// Measuring must not disturb what is measured: out of memory and the like end the measurement only.
template <class Step>
void attempt(std::shared_ptr<BlockCall>& call, const Step& step) noexcept {
  if (!call) return;
  try {
    step(*call);
  } catch (...) {
    call->leave();
    call.reset();
  }
}

}  // namespace

void throw_empty_block() {
  throw Error(failed_precondition("cox::run: expected a block with a module, found an empty one"));
}

Observation::Observation(const std::shared_ptr<BlockGate>& gate) noexcept {
  const RunContext* context = current_context();
  if (context != nullptr && context->is_rerun) return;
  auto state = std::static_pointer_cast<BlockState>(gate);
  if (state->mode == MeasureMode::off) return;
  try {
    call_ = std::make_shared<BlockCall>(std::move(state));
  } catch (...) {
    call_ = nullptr;
  }
}

Observation::~Observation() {
  if (call_) call_->leave();
}

void Observation::input(const at::Tensor& tensor) noexcept {
  attempt(call_, [&](BlockCall& call) { call.add_input(tensor); });
}

void Observation::arrive() noexcept {
  attempt(call_, [](BlockCall& call) { call.arrive(); });
}

void Observation::begin() noexcept {
  attempt(call_, [](BlockCall& call) { call.enter(); });
}

void Observation::end() noexcept {
  attempt(call_, [](BlockCall& call) {
    call.leave();
    call.measure_forward();
  });
}

void Observation::output(const at::Tensor& tensor) noexcept {
  attempt(call_, [&](BlockCall& call) { call.add_output(tensor); });
}

void Observation::finish() noexcept {
  attempt(call_, [](BlockCall& call) { call.finish_forward(); });
  call_.reset();
}

}  // namespace cox::detail
