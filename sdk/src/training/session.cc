// Session composes the parts of the SDK and forwards the calls that belong to one capability.
#include "coxswain/session.h"

#include <torch/torch.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/io/limits.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/libtorch/version.h"
#include "sdk/src/optim/schedules.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/telemetry.h"
#include "sdk/src/training/adoption.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/loop_keeper.h"
#include "sdk/src/training/rank_rows.h"

namespace cox {
namespace {

using detail::ActuatorList;
using detail::BlockWatch;
using detail::Capabilities;
using detail::Membership;
using detail::SessionState;

}  // namespace

Session detail::session_of(std::shared_ptr<SessionState> state, const Capabilities& capabilities) {
  return Session(std::move(state), std::make_shared<const Capabilities>(capabilities));
}

Session detail::start_session(int argc, const char* const* argv, SessionOptions options,
                              const AddActuators& add_actuators, const WrapRanks& wrap_ranks) {
  std::optional<Capabilities> capabilities;
  const auto make_actuators = [&](const Membership& job) {
    ActuatorList list;
    capabilities.emplace(add_actuators(list, job));
    return list;
  };
  auto state =
      std::make_shared<SessionState>(argc, argv, std::move(options), make_actuators, wrap_ranks);
  return session_of(std::move(state), *capabilities);
}

Session Session::start(int argc, const char* const* argv, SessionOptions options) {
  if (Status fits = detail::check_loaded_version(); !fits.ok())
    throw Error(std::move(fits), Error::Scope::all_ranks);
  return detail::start_session(argc, argv, std::move(options));
}

int Session::rank() const {
  return state_->job().rank().value();
}
int Session::world_size() const {
  return state_->job().world_size();
}
c10::Device Session::device() const {
  return state_->job().place().device;
}
const Config& Session::config() const {
  return state_->job().config();
}
const std::vector<std::string>& Session::arguments() const {
  return state_->job().loaded().rest;
}

void Session::adopt(torch::nn::Module& model, const AdoptOptions& options) {
  adopt_by(options, [&](detail::Adoption& adoption) { adoption.add(model, options); });
}

void Session::adopt(const torch::jit::Module& model, const AdoptOptions& options) {
  adopt_by(options, [&](detail::Adoption& adoption) { adoption.add(model, options); });
}

void Session::adopt_by(const AdoptOptions& options,
                       const std::function<void(detail::Adoption&)>& add) {
  detail::DeclaredLoop& loop = state_->loop();
  if (!adoption_ && loop.is_reducing() && !loop.is_adopted()) {
    throw Error(
        failed_precondition("adopt: expected a session without Reducer and Trainer, found one of "
                            "them; a Reducer or Trainer averages gradients already"));
  }
  if (state_->control().is_started() && !loop.is_adopted()) {
    throw Error(
        failed_precondition("adopt: expected a session before its first step, found a session that "
                            "has begun; call adopt() right after start()"));
  }
  const auto named = state_->job().world().name_calls("Session::adopt");
  if (!adoption_) loop.begin_adopted_anew();
  // The adoption holds a Session of its own, which must not keep the adoption alive.
  auto adoption = adoption_ ? adoption_ : std::make_shared<detail::Adoption>(*this, options);
  add(*adoption);
  adoption_ = std::move(adoption);
}

detail::LoopKeeper& Session::keeper() {
  if (!adoption_) {
    throw Error(
        failed_precondition("keep: expected a session with an adopted model, found none; call "
                            "adopt() first, or use a Trainer, which saves the state itself"),
        Error::Scope::all_ranks);
  }
  // The keeper's own Session does not keep the adoption alive.
  if (!keeper_)
    keeper_ = std::make_shared<detail::LoopKeeper>(detail::session_of(state_, *capabilities_));
  return *keeper_;
}

void Session::keep(KeptOptimizer optimizer, KeptCounter epoch, KeptCounter batch) {
  keeper().keep({*adoption_, {optimizer}, epoch, batch});
}
void Session::keep(const std::vector<KeptOptimizer>& optimizers, KeptCounter epoch,
                   KeptCounter batch) {
  keeper().keep({*adoption_, optimizers, epoch, batch});
}
void Session::add_state(std::string_view name, TrainingPart part) {
  keeper().add_part(name, std::move(part));
}
void Session::add_state(std::string_view name, torch::optim::LRScheduler& schedule) {
  keeper().add_part(name, detail::part_of(schedule));
}
void Session::add_state(std::string_view name, torch::optim::ReduceLROnPlateauScheduler& schedule) {
  keeper().add_part(name, detail::part_of(schedule));
}
void Session::add_state(std::string_view name, TorchSampler& sampler) {
  keeper().add_row(detail::row_of(name, sampler));
}

StepScope* Session::open_step() {
  return adoption_ ? adoption_->open_step() : nullptr;
}

void Session::detach(torch::nn::Module& model) {
  if (adoption_ && adoption_->models().has(model)) return adoption_.reset();
  state_->detach();
}

void Session::detach(const torch::jit::Module& model) {
  if (adoption_ && adoption_->models().has(model)) adoption_.reset();
}

void Session::together(const std::function<void()>& work) {
  Status status;
  try {
    work();
  } catch (const Error& error) {
    status = error.status();
  } catch (const std::exception& error) {
    status = internal_error(detail::first_line(error.what()), io::limit_behind(error));
  }
  const auto named = state_->job().world().name_calls("Session::together");
  const detail::WaitingScope waiting(state_->recorder());
  state_->job().agree(status);
}

void Session::calibrate(torch::nn::Module& model, const std::function<at::Tensor()>& sample_loss,
                        std::int64_t optimizer_bytes) {
  if (state_->calibration().is_missing_reducer()) {
    throw Error(
        failed_precondition("calibrate: expected a Reducer that was made before it, found none; "
                            "plans are applied where ranks agree, which needs a Reducer"),
        Error::Scope::all_ranks);
  }
  const BlockWatch::Following shown(capabilities_->blocks);
  detail::Calibration& calibration = state_->calibration();
  if (calibration.is_wanted()) calibration.run({model, sample_loss, optimizer_bytes});
}

StepScope Session::step() {
  if (adoption_) {
    throw Error(
        failed_precondition("step: expected a session without adopted models, found an adopted "
                            "model; Coxswain finds the steps of adopted models"));
  }
  return StepScope(state_);
}
const Plan& Session::plan() const {
  if (!state_->control().is_started()) {
    throw Error(failed_precondition(
        "plan: expected a session that has begun, found one before its first step; call step(), or "
        "make a Reducer or Trainer, before it"));
  }
  return state_->control().plane().plan();
}
bool Session::stop_requested() const {
  if (adoption_) adoption_->averaging().loop_asks();
  const bool is_agreed_upon = adoption_ && !adoption_->averaging().only_watches();
  return is_agreed_upon ? state_->step().stop_agreed() : state_->stop_asked();
}
bool Session::stop_requested_anywhere() {
  if (adoption_) adoption_->averaging().loop_asks();
  return state_->stop_asked_anywhere();
}
std::string Session::status_address() const {
  return state_->control().telemetry().status_address();
}
std::shared_ptr<prometheus::Collectable> Session::metrics() const {
  return state_->control().telemetry().metrics();
}
SessionReport Session::report() const {
  return state_->control().telemetry().report();
}
void Session::finish() {
  if (adoption_) adoption_->finish();
  if (const auto keeper = std::exchange(keeper_, nullptr)) keeper->finish();
  adoption_.reset();
  state_->finish();
}

void Session::force_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  capabilities_->formats.request(
      block, {.what = PrecisionRequest::What::force, .format = format, .rounds = rounds});
}
void Session::forbid_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  capabilities_->formats.request(
      block, {.what = PrecisionRequest::What::forbid, .format = format, .rounds = rounds});
}
void Session::release_precision(std::string_view block) {
  capabilities_->formats.request(block, {.what = PrecisionRequest::What::release});
}

}  // namespace cox
