#include "coxswain/session.h"

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "coxswain/error.h"
#include "coxswain/wrap.h"
#include "sdk/src/precision/trial_step.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/world.h"

namespace cox {

using detail::Clock;
using detail::SessionState;

namespace {

// What torch's exceptions say before their backtrace.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Before MPI has started (or when it is another one) only the environment knows the rank.
std::string rank_of_this_process() {
  const auto environment = detail::process_environment();
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const std::string rank = detail::value_of(environment, name);
    if (!rank.empty()) return rank;
  }
  return {};
}

}  // namespace

PhaseScope::PhaseScope(SessionState& state, Phase phase) : state_(state) {
  state_.step().recorder().enter(phase, Clock::now());
}

PhaseScope::~PhaseScope() {
  state_.step().recorder().leave(Clock::now());
}

StepScope::StepScope(std::shared_ptr<SessionState> state) : state_(std::move(state)) {
  if (state_->step().recorder().is_open()) {
    throw Error(
        failed_precondition("step: expected no open step, found one; close it first (end its "
                            "scope), and open none in a "
                            "Trainer's loop, which has its own (TrainerStep)"));
  }
  state_->begin_step();
}

StepScope::~StepScope() {
  if (state_) state_->step().end();
}

std::uint64_t StepScope::number() const {
  return state_->step().recorder().report().step.value();
}
PhaseScope StepScope::phase(Phase phase) {
  return PhaseScope(*state_, phase);
}
void StepScope::loss(double mean, double weight) {
  state_->step().recorder().loss(mean, weight);
}
void StepScope::samples(std::uint64_t count) {
  state_->step().recorder().samples(count);
}
void StepScope::tokens(std::uint64_t count) {
  state_->step().recorder().tokens(count);
}
void StepScope::gradient_norm(double value) {
  state_->step().recorder().gradient_norm(value);
}
void StepScope::log(std::string_view name, double value) {
  state_->step().recorder().log(name, value);
}

int Session::rank() const {
  return state_->job().rank().value();
}
int Session::world_size() const {
  return state_->job().world_size();
}
const Config& Session::config() const {
  return state_->job().config();
}
const std::vector<std::string>& Session::arguments() const {
  return state_->job().arguments();
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
    status = internal_error(first_line(error.what()));
  }
  state_->job().agree(status);
}

void Session::calibrate(torch::nn::Module& model, const std::function<at::Tensor()>& sample_loss,
                        std::int64_t optimizer_bytes) {
  if (state_->is_missing_reducer()) {
    throw Error(failed_precondition(
                    "calibrate: expected a Reducer that was made before it, found none; plans are "
                    "carried out where ranks agree on them"),
                Error::Scope::all_ranks);
  }
  detail::Calibration& calibration = state_->calibration();
  if (calibration.is_wanted()) calibration.run({model, sample_loss, optimizer_bytes});
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
  return state_->control().plane().plan();
}
bool Session::stop_requested() const {
  return state_->stop_asked();
}
bool Session::stop_requested_anywhere() {
  return state_->stop_asked_anywhere();
}
std::string Session::status_address() const {
  return state_->control().status_address();
}
SessionReport Session::report() const {
  return state_->control().report();
}
void Session::finish() {
  state_->finish();
}

int report(const std::exception& error) {
  const std::string rank = rank_of_this_process();
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool on_all_ranks = ours != nullptr && ours->scope() == Error::Scope::all_ranks;
  if (on_all_ranks && !rank.empty() && rank != "0") return 1;
  const std::string where = on_all_ranks || rank.empty() ? "" : "rank " + rank + ": ";
  const std::string text = ours != nullptr ? ours->status().message() : first_line(error.what());
  std::fprintf(stderr, "error: %s%s\n", where.c_str(), text.c_str());
  return 1;
}

}  // namespace cox
