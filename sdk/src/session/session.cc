#include "coxswain/session.h"

#include <exception>

#include "coxswain/error.h"
#include "coxswain/wrap.h"
#include "sdk/src/session/first_line.h"
#include "sdk/src/session/session_state.h"

namespace cox {

using detail::Clock;
using detail::SessionState;

PhaseScope::PhaseScope(SessionState& state, Phase phase) : state_(state) {
  state_.recorder().enter(phase, Clock::now());
}

PhaseScope::~PhaseScope() {
  state_.recorder().leave(Clock::now());
}

StepScope::StepScope(std::shared_ptr<SessionState> state) : state_(std::move(state)) {
  if (state_->recorder().is_open()) {
    throw Error(
        failed_precondition("step: expected no open step, found one; close it first (end its "
                            "scope), and open none in a "
                            "Trainer's loop, which has its own (TrainerStep)"));
  }
  state_->begin_step();
}

StepScope::~StepScope() {
  if (state_) state_->end_step();
}

std::uint64_t StepScope::number() const {
  return state_->recorder().report().step.value();
}
PhaseScope StepScope::phase(Phase phase) {
  return PhaseScope(*state_, phase);
}
void StepScope::loss(double mean, double weight) {
  state_->recorder().loss(mean, weight);
}
void StepScope::samples(std::uint64_t count) {
  state_->recorder().samples(count);
}
void StepScope::tokens(std::uint64_t count) {
  state_->recorder().tokens(count);
}
void StepScope::gradient_norm(double value) {
  state_->recorder().gradient_norm(value);
}
void StepScope::log(std::string_view name, double value) {
  state_->recorder().log(name, value);
}

Session Session::start(int argc, const char* const* argv, SessionOptions options) {
  return Session(std::make_shared<SessionState>(argc, argv, std::move(options)));
}

int Session::rank() const {
  return state_->rank().value();
}
int Session::world_size() const {
  return state_->world_size();
}
const Config& Session::config() const {
  return state_->config();
}
const std::vector<std::string>& Session::arguments() const {
  return state_->arguments();
}

void Session::attach(torch::nn::Module& model) {
  if (state_->is_started()) {
    throw Error(failed_precondition(
        "attach: expected a session before its first step, found one that has begun; attach the "
        "model right after Session::start"));
  }
  state_->attach(model);
}

void Session::detach(torch::nn::Module& model) {
  state_->detach();
  cox::detach(model);
}

void Session::together(const std::function<void()>& work) {
  Status status;
  try {
    work();
  } catch (const Error& error) {
    status = error.status();
  } catch (const std::exception& error) {
    status = internal_error(detail::first_line(error.what()));
  }
  state_->agree(status);
}

void Session::rehearse(torch::nn::Module& model, const std::function<at::Tensor()>& sample_loss,
                       std::int64_t optimizer_bytes) {
  if (state_->is_missing_reducer()) {
    throw Error(failed_precondition(
                    "rehearse: expected a Reducer that was made before it, found none; plans are "
                    "carried out where ranks agree on them"),
                Error::Scope::all_ranks);
  }
  if (state_->wants_rehearsal()) state_->rehearse({model, sample_loss, optimizer_bytes});
}

void Session::force_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  state_->wish(block, {.what = PrecisionRequest::What::force, .format = format, .rounds = rounds});
}
void Session::forbid_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  state_->wish(block, {.what = PrecisionRequest::What::forbid, .format = format, .rounds = rounds});
}
void Session::release_precision(std::string_view block) {
  state_->wish(block, {.what = PrecisionRequest::What::release});
}

StepScope Session::step() {
  return StepScope(state_);
}
const Plan& Session::plan() const {
  if (!state_->is_started()) {
    throw Error(failed_precondition(
        "plan: expected a session that has begun, found one before its first step; call step(), or "
        "make a Reducer or Trainer, before it"));
  }
  return state_->plan();
}
bool Session::stop_requested() const {
  return state_->stop_agreed() || state_->stop_asked_here();
}
bool Session::stop_requested_anywhere() {
  return state_->stop_asked_anywhere();
}
std::string Session::status_address() const {
  return state_->status_address();
}
SessionReport Session::report() const {
  return state_->report();
}
void Session::finish() {
  state_->finish();
}

}  // namespace cox
