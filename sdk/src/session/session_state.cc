#include "sdk/src/session/session_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

std::string tensor_name(const SavedRow& row, std::size_t rank) {
  return std::string(row.name) + ".rank" + std::to_string(rank);
}

Result<std::span<const double>> values_of(const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kDouble || !tensor.is_contiguous()) {
    return invalid_argument(named.name + ": expected one contiguous row of F64, found " +
                            c10::toString(tensor.scalar_type()) + " of " +
                            std::to_string(tensor.dim()) + " dimensions");
  }
  return std::span<const double>(tensor.const_data_ptr<double>(),
                                 static_cast<std::size_t>(tensor.numel()));
}

}  // namespace

bool Calibration::is_wanted() const {
  return !has_run_ && step_.is_reducing() &&
         std::ranges::any_of(actuators_,
                             [](const Actuator* each) { return each->wants_calibration(); });
}

void Calibration::run(const SampleStep& sample) {
  if (step_.has_reported()) {
    throw Error(failed_precondition(
                    "calibrate: expected it before the end of the session's first step, found " +
                    std::to_string(step_.steps_ended()) +
                    " reported; call Session::calibrate() right after the Reducer was made, or "
                    "TrainerStep::forward() or accumulate() from the first step on"),
                Error::Scope::all_ranks);
  }
  has_run_ = true;
  const auto began = Clock::now();
  for (Actuator* actuator : actuators_) {
    if (actuator->wants_calibration()) actuator->calibrate(sample, *this);
  }
  // The open step must not see what a trial left behind, and the plan may be another one.
  forget_run();
  step_.restart();
  step_.recorder().leave_out(began, Clock::now());
}

void Calibration::forget_run() {
  for (Actuator* actuator : actuators_) actuator->forget_run();
}

std::vector<Reason> Calibration::learn() {
  std::vector<Reason> reasons = control_.learn(measured_);
  for (const Reason& reason : reasons) {
    const bool is_news = std::ranges::find(told_, reason.text, &Reason::text) == told_.end();
    if (reason.code != ReasonCode::memory_infeasible && is_news) job_.log().info(reason.text);
  }
  told_ = reasons;
  return reasons;
}

SessionState::SessionState(int argc, const char* const* argv, SessionOptions options,
                           const MakeActuators& make_actuators)
    : job_(argc, argv, options),
      control_(job_, std::move(options.policies), std::move(options.program)),
      actuators_(make_actuators(job_)),
      step_(job_, control_, actuators_),
      calibration_(job_, control_, step_, actuators_) {
  for (Actuator* actuator : actuators_) job_.agree(actuator->prepare());
  job_.log_hosts();
}

SessionState::~SessionState() {
  if (std::uncaught_exceptions() > 0) {
    control_.explain_end();
    job_.leave_after_failure();
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    job_.log().error(error.what());
    control_.explain_end();
    job_.leave_after_failure();
  }
}

void SessionState::attach(torch::nn::Module& model) {
  detach();
  for (Actuator* actuator : actuators_) actuator->attach(model);
}

void SessionState::detach() {
  for (Actuator* actuator : actuators_) actuator->release();
}

void SessionState::declare_reducing() {
  if (is_adopted_) {
    throw Error(failed_precondition(
        "expected a session without adopted models for a Reducer or Trainer, found one; adopt() "
        "averages their gradients already"));
  }
  if (is_started() && !step_.is_reducing()) {
    throw Error(failed_precondition(
        "expected a Reducer or Trainer before the session's first step, found a step that has "
        "begun; construct it right after Session::start"));
  }
  step_.set_reducing();
}

bool SessionState::is_missing_reducer() const {
  return !step_.is_reducing() &&
         std::ranges::any_of(actuators_, [](const Actuator* a) { return a->is_wanted(); });
}

void SessionState::ensure_started() {
  if (is_started()) return;
  JobFacts facts;
  facts.name = job_.config().run.name;
  facts.world_size = job_.world_size();
  for (Actuator* actuator : actuators_) {
    job_.agree(actuator->check(step_.loop()));
    require(actuator->negotiate(job_.all()));
    actuator->contribute(facts);
  }
  if (!step_.is_reducing()) facts.capabilities = {};  // nobody carries a plan out
  const bool steers = step_.is_reducing() && !facts.blocks.empty();
  if (job_.is_root() && !steers) warn_of_idle_settings();
  control_.start(std::move(facts));
  step_.start_at(control_.plane().start_facts().first_round);
  job_.attend([this] { return step_.attend("a call that all ranks make"); });
  // A loop whose steps will ask is asked to stop from here on, not ended.
  if (step_.is_reducing()) static_cast<void>(job_.termination().requested());
}

// Settings of blocks have no effect without blocks, or in a loop whose ranks do not agree on plans.
void SessionState::warn_of_idle_settings() const {
  const std::string but = step_.is_reducing()
                              ? " is set, but the model has no blocks (cox::run, cox::wrap); "
                              : " is set, but the loop has no Reducer or Trainer; ";
  for (const Actuator* actuator : actuators_) {
    if (!actuator->is_wanted()) continue;
    job_.log().warning(actuator->name() + (".*" + but) + actuator->without());
  }
}

void SessionState::begin_step() {
  ensure_started();
  step_.begin();
}

WaitingScope::WaitingScope(StepRecorder& recorder) : recorder_(recorder) {
  recorder_.begin_waiting(Clock::now());
}

WaitingScope::~WaitingScope() {
  recorder_.end_waiting(Clock::now());
}

bool SessionState::stop_asked_anywhere() {
  const WaitingScope waiting(step_.recorder());
  const auto asked = job_.gather(stop_asked() ? 1 : 0);
  const bool anywhere = std::ranges::find(asked, 1u) != asked.end();
  if (anywhere) job_.termination().requested_elsewhere();
  return anywhere;
}

std::vector<NamedTensor> SessionState::saved_rows() {
  const WaitingScope waiting(step_.recorder());
  std::vector<NamedTensor> saved;
  for (const Actuator* actuator : actuators_) {
    const SavedRow* name = actuator->saved_row();
    if (name == nullptr) continue;
    const auto rows = require(
        gather_rows(job_.all(), actuator->save(), "all ranks to save", job_.between_polls()));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      saved.push_back({tensor_name(*name, r), at::tensor(rows[r], at::kDouble)});
    }
  }
  return saved;
}

void SessionState::load_rows(std::span<const NamedTensor> saved) {
  for (Actuator* actuator : actuators_) {
    if (actuator->saved_row() != nullptr) load_row(*actuator, saved);
  }
}

void SessionState::load_row(Actuator& actuator, std::span<const NamedTensor> saved) {
  const SavedRow& name = *actuator.saved_row();
  const std::string prefix = tensor_name(name, 0).substr(0, tensor_name(name, 0).size() - 1);
  const auto ranks = std::ranges::count_if(
      saved, [&](const NamedTensor& named) { return named.name.starts_with(prefix); });
  if (ranks == 0) return;
  const std::string own = tensor_name(name, static_cast<std::size_t>(job_.rank().value()));
  const auto mine =
      std::ranges::find_if(saved, [&](const NamedTensor& named) { return named.name == own; });
  const std::string anew = std::string(name.title) + " starts anew: ";
  if (ranks != job_.world_size() || mine == saved.end()) {
    if (job_.is_root()) job_.log().info(anew + "it was saved at another world size");
    return;
  }
  const auto row = values_of(*mine);
  const Status loaded = row.ok() ? actuator.load(*row) : row.status();
  if (!loaded.ok()) job_.log().warning(anew + loaded.message());
}

void SessionState::finish() {
  if (finished_) return;
  finished_ = true;
  job_.attend({});  // others may have left before
  const Status ended = is_started() ? control_.finish(step_.last_signal()) : ok_status();
  control_.close();
  require(ended, "session");
}

}  // namespace cox::detail
