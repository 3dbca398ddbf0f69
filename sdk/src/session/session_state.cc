#include "sdk/src/session/session_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/host_facts.h"
#include "sdk/src/session/termination.h"
#include "sdk/src/session/waiting_time.h"

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

SessionState::SessionState(int argc, const char* const* argv, SessionOptions options,
                           const MakeActuators& make_actuators, const WrapRanks& wrap_ranks)
    : job_(argc, argv, options, wrap_ranks),
      control_(job_, std::move(options.policies), std::move(options.program)),
      actuators_(make_actuators(job_)),
      waits_(job_, control_, recorder_),
      step_(job_, control_, actuators_, recorder_, waits_),
      calibration_(job_, control_, recorder_, step_, actuators_) {
  for (Actuator* actuator : actuators_) job_.agree(actuator->prepare());
  log_hosts(job_.all(), job_.place(), job_.log());
  if (!job_.place().device.is_cpu()) {
    recorder_.time_on_device(std::make_unique<PhaseEvents>(job_.place().device));
  }
  leave_out_queueing();
}

// Only there: elsewhere a section costs no system call.
void SessionState::leave_out_queueing() {
  if (!job_.world().is_crowded()) return;
  auto opened = RunQueue::of_this_thread();
  if (!opened) return;
  const auto queue = std::make_shared<RunQueue>(std::move(*opened));
  recorder_.waiting().leave_out_queueing([queue] { return queue->queued(); });
}

SessionState::~SessionState() {
  if (std::uncaught_exceptions() > 0) {
    control_.explain_end();
    job_.world().leave_after_failure(job_.log());
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    job_.log().error(error.what());
    control_.explain_end();
    job_.world().leave_after_failure(job_.log());
  }
}

void SessionState::attach(torch::nn::Module& model) {
  if (is_started()) {
    throw Error(failed_precondition(
        "expected a model before the session's first step, found a session that has begun; give it "
        "to the first Reducer, ManualParallel or Trainer, right after Session::start"));
  }
  detach();
  for (Actuator* actuator : actuators_) actuator->attach(model);
}

void SessionState::detach() {
  for (Actuator* actuator : actuators_) actuator->release();
}

void SessionState::declare_reducing() {
  if (is_adopted_) {
    throw Error(
        failed_precondition("expected a session without adopted models for a Reducer or Trainer, "
                            "found one; keep one of them: a Reducer or Trainer follows its model "
                            "without adopt()"));
  }
  if (is_started() && !is_reducing()) {
    throw Error(failed_precondition(
        "expected a Reducer or Trainer before the session's first step, found a step that has "
        "begun; construct it right after Session::start"));
  }
  loop_ = LoopKind::reducing;
}

bool SessionState::is_missing_reducer() const {
  return !is_reducing() &&
         std::ranges::any_of(actuators_, [](const Actuator* a) { return a->is_wanted(); });
}

void SessionState::ensure_started() {
  if (is_started()) return;
  JobFacts facts;
  facts.name = job_.config().run.name;
  facts.world_size = job_.world_size();
  for (Actuator* actuator : actuators_) {
    job_.agree(actuator->check(loop_));
    require(actuator->negotiate(job_.all()));
    actuator->contribute(facts);
  }
  if (!is_reducing()) facts.capabilities = {};  // nobody carries a plan out
  const bool steers = is_reducing() && !facts.blocks.empty();
  if (job_.is_root() && !steers) warn_of_idle_settings();
  control_.start(std::move(facts), loop_);
  step_.start_at(control_.plane().start_facts().first_round, loop_);
  job_.world().attend([this] { return waits_.attend("a call that all ranks make"); });
  // A loop whose steps will ask is asked to stop from here on, not ended.
  if (is_reducing()) static_cast<void>(job_.termination().requested());
}

// Settings of blocks have no effect without blocks, or in a loop whose ranks do not agree on plans.
void SessionState::warn_of_idle_settings() const {
  const std::string but = is_reducing() ? " is set, but the model has no blocks; "
                                        : " is set, but the loop has no Reducer or Trainer; ";
  for (const Actuator* actuator : actuators_) {
    if (!actuator->is_wanted()) continue;
    job_.log().warning(actuator->name() + (".*" + but) + actuator->without());
  }
}

WaitingScope::WaitingScope(StepRecorder& recorder) : recorder_(recorder) {
  recorder_.begin_waiting(Clock::now());
}

WaitingScope::~WaitingScope() {
  recorder_.end_waiting(Clock::now());
}

bool SessionState::stop_asked_anywhere() {
  struct Asked {
    std::uint64_t is_asked = 0;
    ArrivalStamp arrival;
  };
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

std::vector<NamedTensor> SessionState::saved_rows(RankId to) {
  const WaitingScope waiting(recorder_);
  std::vector<NamedTensor> saved;
  for (const Actuator* actuator : actuators_) {
    const SavedRow* name = actuator->saved_row();
    if (name == nullptr) continue;
    const auto rows = require(gather_rows(job_.all(), actuator->save(), "all ranks to save",
                                          job_.world().between_polls(), to));
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
  job_.world().attend({});  // others may have left before
  const Status ended = is_started() ? control_.finish(step_.last_signal()) : ok_status();
  control_.close();
  require(ended, "session");
}

}  // namespace cox::detail
