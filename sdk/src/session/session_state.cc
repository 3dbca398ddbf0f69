#include "sdk/src/session/session_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/end_states.h"
#include "sdk/src/session/host_facts.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/waiting_time.h"
#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

void DeclaredLoop::declare_reducing(const char* start_name) {
  if (is_adopted_) {
    throw Error(failed_precondition(
        "expected a session without adopted models for a Reducer or Trainer, found an adopted "
        "model; use one of the two: a Reducer or Trainer needs no adopt()"));
  }
  if (control_.is_started() && !is_reducing()) {
    throw Error(failed_precondition(
        "expected a Reducer or Trainer before the session's first step, found a step that has "
        "begun; construct the Reducer or Trainer right after Session::start"));
  }
  kind_ = LoopKind::reducing;
  if (reducing_name_ == nullptr) reducing_name_ = start_name;  // a Trainer has a Reducer
}

const char* DeclaredLoop::start_name() const {
  if (is_adopted_) return "the start of an adopted loop";
  return is_reducing() ? reducing_name_ : "the first step of a loop of the program's own";
}

bool Calibration::is_wanted() const {
  return !has_run_ && loop_.is_reducing() &&
         std::ranges::any_of(actuators_.all<Measuring>(), &Measuring::wants_calibration);
}

bool Calibration::is_missing_reducer() const {
  return !loop_.is_reducing() &&
         std::ranges::any_of(actuators_.all<Measuring>(), &Measuring::is_wanted);
}

void Calibration::run(const SampleStep& sample) {
  if (step_.told() != StepEngine::Told::nothing) {
    throw Error(
        failed_precondition(
            "calibrate: expected a call before the end of the session's first step, found " +
            std::to_string(step_.steps_ended()) +
            " reported; call Session::calibrate() right after the Reducer was made, or "
            "TrainerStep::forward() or accumulate() from the first step on"),
        Error::Scope::all_ranks);
  }
  has_run_ = true;
  measure(sample);
}

void Calibration::run_again(const SampleStep& sample) {
  is_again_ = true;
  measure(sample);
}

void Calibration::agree(const Status& mine) {
  if (!is_again_) return job_.agree(mine);
  if (!mine.ok()) job_.log().warning(mine.message());
}

void Calibration::measure(const SampleStep& sample) {
  const auto began = Clock::now();
  for (Measuring* each : actuators_.all<Measuring>()) {
    if (each->wants_calibration()) each->calibrate(sample, *this);
  }
  // The open step must not see leftovers of a trial, and the plan may have changed.
  forget_run();
  step_.restart();
  recorder_.leave_out(began, Clock::now());
}

void Calibration::forget_run() {
  for (Steering* each : actuators_.all<Steering>()) each->forget_run();
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
                           const MakeActuators& make_actuators, const WrapRanks& wrap_ranks)
    : job_(argc, argv, options, wrap_ranks),
      control_(job_, std::move(options.policies), std::move(options.program)),
      actuators_(make_actuators(job_)),
      loop_(control_),
      waits_(job_, control_, recorder_),
      step_(job_, control_, actuators_, recorder_, waits_),
      calibration_(job_, control_, recorder_, step_, actuators_, loop_),
      exit_watch_([this](int code) { return leave_by_exit(code); }) {
  const auto named = job_.world().name_calls("Session::start");
  for (Actuator* each : actuators_.all<Actuator>()) job_.agree(each->prepare());
  log_hosts(job_.all(), job_.place(), job_.log());
  if (!job_.place().device.is_cpu()) {
    recorder_.time_on_device(std::make_unique<PhaseEvents>(job_.place().device));
  }
  leave_out_queueing();
  job_.world().watch_finalize([this] { leave_by_finalize(); });
}

// Only on a crowded machine: elsewhere a section costs no system call.
void SessionState::leave_out_queueing() {
  if (!job_.world().is_crowded()) return;
  auto opened = RunQueue::of_this_thread();
  if (!opened) return;
  const auto queue = std::make_shared<RunQueue>(std::move(*opened));
  recorder_.waiting().leave_out_queueing([queue] { return queue->queued(); });
}

SessionState::~SessionState() {
  job_.world().watch_finalize({});
  if (std::uncaught_exceptions() > 0) {
    control_.explain_end();
    job_.world().leave_after_failure(job_.log());
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    job_.log().error(error.what() + io::limit_behind(error));
    control_.explain_end();
    exit_watch_.fail();
    job_.world().leave_after_failure(job_.log());
  }
}

void SessionState::attach(torch::nn::Module& model) {
  loop_.declare_reducing();
  if (control_.is_started()) {
    throw Error(failed_precondition(
        "expected a model before the session's first step, found a session that has begun; give "
        "the model to the first Reducer, ManualParallel or Trainer, right after Session::start"));
  }
  detach();
  for (Actuator* each : actuators_.all<Actuator>()) each->attach(model);
}

void SessionState::detach() {
  for (Actuator* each : actuators_.all<Actuator>()) each->release();
}

void SessionState::ensure_started() {
  if (control_.is_started()) return;
  const auto named = job_.world().name_calls(loop_.start_name());
  JobFacts facts;
  facts.name = job_.config().run.name;
  facts.world_size = job_.world_size();
  for (Actuator* each : actuators_.all<Actuator>()) {
    job_.agree(each->check(loop_.kind()));
    require(each->negotiate(job_.all()));
    each->contribute(facts);
  }
  if (!loop_.is_reducing()) facts.capabilities = {};  // no rank applies a plan
  const bool steers = loop_.is_reducing() && !facts.blocks.empty();
  if (job_.is_root() && !steers) warn_of_idle_settings();
  check_sharding();
  control_.start(std::move(facts), loop_.kind());
  step_.start_at(control_.plane().start_facts().first_round, loop_.kind());
  job_.world().attend(
      [this] { return waits_.attend(job_.world().name_of_calls("a call that all ranks make")); });
  // A loop whose steps poll is asked to stop from now on, instead of being ended.
  if (loop_.is_reducing()) static_cast<void>(job_.termination().requested());
}

// Settings of blocks have no effect without blocks, or in a loop whose ranks do not agree on plans.
void SessionState::warn_of_idle_settings() const {
  const std::string but = loop_.is_reducing()
                              ? " is set, but has no effect: the model has no blocks; "
                              : " is set, but has no effect: the loop has no Reducer or Trainer; ";
  for (const Measuring* each : actuators_.all<Measuring>()) {
    if (!each->is_wanted()) continue;
    job_.log().warning(each->name() + (".*" + but) + each->without());
  }
}

void SessionState::check_sharding() const {
  if (job_.config().shard.mode == ShardMode::off) return;
  if (job_.world_size() == 1) {
    return job_.log().info("shard.mode=state has no effect in a job of one rank");
  }
  if (loop_.is_sharded()) return;
  throw Error(failed_precondition(
                  "shard.mode=state: expected a Trainer, a Reducer, or a loop whose models are "
                  "adopted (Session::adopt), found ",
                  loop_.is_reducing() ? loop_.start_name() : "a loop that is only watched",
                  "; adopt the model, or set shard.mode=off"),
              Error::Scope::all_ranks);
}

bool SessionState::stop_asked_anywhere() {
  struct Asked {
    std::uint64_t is_asked = 0;
    ArrivalStamp arrival;
  };
  const auto named = job_.world().name_calls("Session::stop_requested_anywhere");
  const WaitingScope waiting(recorder_);
  const Asked mine{stop_asked() ? 1u : 0u, waits_.arrive()};
  const auto all = require(gather_values(job_.all(), mine, job_.world().between_polls()));
  ArrivalStamp latest;
  bool anywhere = false;
  for (const Asked& each : all) {
    merge_into(latest, each.arrival);
    anywhere = anywhere || each.is_asked != 0;
  }
  waits_.all_arrived(mine.arrival, latest);
  if (anywhere) job_.termination().requested_elsewhere();
  return anywhere;
}

void SessionState::finish() {
  if (finished_) return;
  finished_ = true;
  job_.world().attend({});  // others may have left before
  const Status ended = control_.is_started() ? control_.finish(step_.last_signal()) : ok_status();
  if (ended.ok()) check_end();  // before this rank leaves: an error is not an orderly end
  control_.close();
  require(ended, "session");
}

// A job whose ranks trained together has failed if its weights are unusable.
void SessionState::check_end() const {
  if (!loop_.is_reducing()) return;
  const auto named = job_.world().name_calls("the end of the session");
  const EndFinding found = compare_end_states(job_, actuators_, Leaves::end);
  if (!found.different.empty()) {
    throw Error(failed_precondition("the end: expected the same weights on all ranks, found that " +
                                    found.different +
                                    "; the program changed the weights on some ranks only after "
                                    "their last comparison (reduction.verify_steps)"),
                Error::Scope::all_ranks);
  }
  if (found.not_finite.empty()) return;
  const bool has_save = !io::saves_in(job_.config().checkpoint.directory).empty();
  throw Error(failed_precondition(
                  concat("the end: expected finite weights, found that ", found.not_finite,
                         has_save ? "; resume from an earlier save" : "; start from the beginning",
                         " with a lower learning rate")),
              Error::Scope::all_ranks);
}

// An exit(0) of all ranks after the same step is the end of the job. If one rank alone exited with
// 0, the launcher would end the others silently and report success.
int SessionState::leave_by_exit(int code) noexcept try {
  const bool is_alone = job_.world_size() == 1;
  const bool is_ours = std::this_thread::get_id() == thread_;
  if (finished_ || (is_alone && !is_ours)) return code;
  if (code == 0 && is_ours) {
    const StreamPause unseen;  // a stream needs the thread's own variables, which are gone
    const at::NoGradGuard no_grad;
    finish();
    require(job_.world().end(), "exit(0) on this rank");
    return 0;
  }
  if (!is_alone && !control_.is_watched()) {
    job_.log().error(concat("exit(", code, ") was called before the end of the session",
                            is_ours ? "" : ", on another thread than the training thread",
                            "; the launcher then ends the other ranks"));
    control_.explain_end();
  }
  return code == 0 ? 1 : code;
} catch (const std::exception& error) {
  job_.log().error(error.what() + io::limit_behind(error));
  control_.explain_end();
  return 1;
}

void SessionState::leave_by_finalize() noexcept try {
  if (finished_) return;
  job_.log().warning(
      "MPI_Finalize was called before the end of the session; the session ends here; call "
      "Session::finish() before MPI_Finalize");
  const StreamPause unseen;
  const at::NoGradGuard no_grad;
  finish();
} catch (const std::exception& error) {
  job_.log().error(error.what() + io::limit_behind(error));
  control_.explain_end();
  exit_watch_.fail();
}

}  // namespace cox::detail
