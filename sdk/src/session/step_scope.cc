#include <memory>
#include <string_view>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "coxswain/session.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/step_recorder.h"

namespace cox {

using detail::SessionState;

PhaseScope::PhaseScope(SessionState& state, Phase phase) : state_(state) {
  state_.recorder().enter(phase, state_.now());
}

PhaseScope::~PhaseScope() {
  state_.recorder().leave(state_.now());
}

StepScope::StepScope(std::shared_ptr<SessionState> state) : state_(std::move(state)) {
  if (state_->recorder().is_open()) {
    throw Error(failed_precondition(
        "step: expected no open step, found an open step; close that step first (end its scope); a "
        "Trainer's loop opens its own steps (TrainerStep)"));
  }
  state_->ensure_started();
  state_->step().begin();
}

StepScope::~StepScope() {
  if (state_) state_->step().end();
}

std::uint64_t StepScope::number() const {
  return state_->recorder().report().step.value();
}
PhaseScope StepScope::phase(Phase phase) {
  return PhaseScope(*state_, phase);
}
void StepScope::loss(double mean, double weight) {
  state_->recorder().notes().add_loss(mean, weight);
}
void StepScope::samples(std::uint64_t count) {
  state_->recorder().notes().samples += count;
}
void StepScope::tokens(std::uint64_t count) {
  state_->recorder().notes().tokens += count;
}
void StepScope::gradient_norm(double value) {
  state_->recorder().notes().set_gradient_norm(value);
}
void StepScope::log(std::string_view name, double value) {
  if (state_->recorder().log(name, value) != detail::ScalarNames::Verdict::newly_ambiguous) return;
  state_->job().log().warning(concat(
      "log: expected names that differ in their first 15 bytes, found \"", name,
      "\" after another name with the same first bytes; this name is left out: shorten the name"));
}

}  // namespace cox
