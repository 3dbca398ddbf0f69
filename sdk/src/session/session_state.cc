#include "sdk/src/session/session_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "coxswain/reducer.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

void OpenStep::start_at(RoundId first) {
  round_ = marked_ = first;
  recorder_.move_mark(&control_.plane().mark());
  recorder_.do_between_steps(Activity::outside, Clock::now());
}

void OpenStep::begin() {
  const Clock::time_point began = Clock::now();
  if (!is_reducing()) open_control_round_ = true;
  runtime::ControlPlane& plane = control_.plane();
  plane.begin_round();
  plan_of_round_ = plane.plan().id.number;
  for (Steering* each : actuators_.all<Steering>()) {
    if (is_reducing()) each->apply(plane.plan(), round_);
    each->begin_step();
  }
  const Clock::time_point now = Clock::now();
  recorder_.add_host(now - began);
  recorder_.begin(next_, now);
  next_ = next_.next();
  ++begun_;
}

void OpenStep::restart() {
  if (!recorder_.is_open()) return;
  for (Steering* each : actuators_.all<Steering>()) each->restart_step();
}

StepBallot OpenStep::ballot() const {
  StepBallot ballot;
  control_.plane().cast(ballot);
  if (holds_reports_) ballot.round_closed_min = 0;
  ballot.clocks_due_max = job_.is_root() && job_.clocks().is_due() ? 1 : 0;
  ballot.stop_max = job_.termination().requested() ? 1 : 0;
  ballot.fingerprint_min = ballot.fingerprint_max = fingerprint();
  return ballot;
}

std::uint64_t OpenStep::fingerprint() const {
  Fnv1a64 hash;
  hash.add(round_.value());
  hash.add(recorder_.report().step.value());
  hash.add(plan_of_round_);
  for (const Comparing* each : actuators_.all<Comparing>()) {
    const EqualBits bits = each->equal_bits();
    if (bits.what != nullptr) hash.add(bits.bits);
  }
  return hash.value();
}

void OpenStep::compare(const char* what, std::uint64_t mine, std::string& differences) const {
  const std::string different = job_.ranks_unlike_root(mine);
  if (different.empty()) return;
  differences += concat(differences.empty() ? "" : "; ", what, " of rank ", different);
}

// All ranks see the same difference, so all of them ask who differs, and in what.
void OpenStep::check_together(const StepBallot& merged) const {
  if (merged.fingerprint_min == merged.fingerprint_max) return;
  std::string differences;
  compare("the round", round_.value(), differences);
  compare("the step", recorder_.report().step.value(), differences);
  compare("the plan", plan_of_round_, differences);
  for (Comparing* each : actuators_.all<Comparing>()) {
    const EqualBits bits = each->equal_bits();
    const std::size_t before = differences.size();
    compare(bits.what == nullptr ? each->name() : bits.what, bits.bits, differences);
    if (differences.size() == before) continue;
    const std::string more = each->explain_difference(job_.all());
    if (!more.empty()) differences += ": " + more;
  }
  throw Error(
      failed_precondition(concat(
          "step ", number(), ": expected what rank 0 has on all ranks, found ",
          differences.empty() ? std::string("ranks that differ") : differences,
          "; all ranks make the same calls, with the same settings and options, in every step")),
      Error::Scope::all_ranks);
}

void OpenStep::agreed(const StepBallot& merged) {
  control_.plane().agree(round_, merged);
  marked_ = round_.next();
  control_.plane().mark().begin_round(marked_, Clock::now());
  open_control_round_ = merged.round_closed_min == 1;
  stop_agreed_ = merged.stop_max != 0;
  if (stop_agreed_) job_.termination().requested_elsewhere();
  if (merged.clocks_due_max != 0) compare_clocks();
}

// What fails here fails in the next step's reduction as well, which says so.
void OpenStep::compare_clocks() {
  static_cast<void>(job_.clocks().compare(attend("the comparison of clocks")));
}

void OpenStep::note_buckets(const ReductionReport& reduction) {
  const bool is_told = control_.rows() != nullptr && job_.device().is_cpu() &&
                       round_.value() % metrics::StepBuckets::kEveryRounds == 0;
  if (!is_told || reduction.buckets.empty()) return;
  metrics::StepBuckets& kept = buckets_.emplace();
  kept.round = round_;
  const auto from_end = [&](double seconds) {
    return static_cast<float>(seconds - reduction.backward_seconds);
  };
  for (const BucketReport& each : reduction.buckets) {
    kept.add({1, each.bytes, from_end(each.started_seconds), from_end(each.done_seconds)},
             reduction.buckets.size());
  }
}

SlowWait OpenStep::slow_wait(const char* where) const {
  const runtime::ControlPlane& plane = control_.plane();
  return SlowWait({job_.log(), where, marked_, [&plane] { return plane.marks_here(); },
                   Seconds(job_.config().control.wait_seconds),
                   [&control = control_] { control.explain_end(); }},
                  Clock::now());
}

void OpenStep::pump(SlowWait& wait) {
  const Clock::time_point now = Clock::now();
  control_.plane().mark().beat(now);
  control_.plane().pump();
  wait.look(now);
}

BetweenPolls OpenStep::attend(const char* where) const {
  auto wait = std::make_shared<SlowWait>(slow_wait(where));
  return [this, wait] {
    const Clock::time_point now = Clock::now();
    control_.plane().mark().beat(now);
    wait->look(now);
  };
}

RankSignal OpenStep::signal_of(const StepReport& report) const {
  const bool has_times = report.has_times && begun_ > job_.config().run.warmup_steps;
  RankSignal signal = has_times ? signal_from(report) : without_times(signal_from(report));
  signal.rank = job_.rank();
  signal.incarnation = control_.plane().job().incarnation;
  signal.round = round_;
  signal.plan_applied = is_reducing() ? plan_of_round_ : 0;
  if (!is_reducing()) signal.set(SignalFlag::watching);
  for (const Reporting* each : actuators_.all<Reporting>()) each->sign(signal);
  return signal;
}

void OpenStep::end() noexcept {
  const Clock::time_point ended = Clock::now();
  const StepReport& report = recorder_.end(ended);
  runtime::ControlPlane& plane = control_.plane();
  std::optional<metrics::StepRow> row;
  if (control_.rows() != nullptr) {
    row = row_from(report, round_, wall_clock());
    row->plan = plane.plan().id.number;
  }
  StepOutput output{.row = row ? &*row : nullptr};
  const StepEnd step{job_.rank(), round_, plane.plan(), report.samples, report.step};
  for (Reporting* each : actuators_.all<Reporting>()) each->end_step(step, output);
  RankSignal signal = signal_of(report);
  for (Reporting* each : actuators_.all<Reporting>()) {
    if (!open_control_round_ || signal.fragment.kind != FragmentKind::none) break;
    signal.fragment = each->next_fragment();
  }
  if (row) control_.rows()->push(*row, buckets_ ? &*buckets_ : nullptr);
  buckets_.reset();
  if (output.operators) control_.keep(std::move(output.operators));
  plane.report(signal, output.evidence,
               open_control_round_ ? runtime::MayOpen::yes : runtime::MayOpen::no);
  plane.pump();
  has_reported_ = has_reported_ || open_control_round_;
  open_control_round_ = false;
  round_ = round_.next();
  // With a reduction it is agreed() that completes a round: others may wait in this one for ever.
  const Clock::time_point now = Clock::now();
  recorder_.add_host(now - ended);
  if (is_reducing()) return;
  marked_ = round_;
  plane.mark().begin_round(marked_, now);
}

RankSignal OpenStep::last_signal() {
  StepReport last;
  last.step = recorder_.report().step;
  last.loss = last.gradient_norm = std::nan("");
  plan_of_round_ = control_.plane().plan().id.number;
  return signal_of(last);
}

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
         std::ranges::any_of(actuators_.all<Measuring>(), &Measuring::wants_calibration);
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
  for (Measuring* each : actuators_.all<Measuring>()) {
    if (each->wants_calibration()) each->calibrate(sample, *this);
  }
  // The open step must not see what a trial left behind, and the plan may be another one.
  forget_run();
  step_.restart();
  step_.recorder().leave_out(began, Clock::now());
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
      step_(job_, control_, actuators_),
      calibration_(job_, control_, step_, actuators_) {
  for (Actuator* each : actuators_.all<Actuator>()) job_.agree(each->prepare());
  job_.log_hosts();
  if (!job_.device().is_cpu()) {
    step_.recorder().time_on_device(std::make_unique<PhaseEvents>(job_.device()));
  }
  leave_out_queueing();
}

// Only there: elsewhere a section costs no system call.
void SessionState::leave_out_queueing() {
  if (!job_.is_crowded()) return;
  auto opened = RunQueue::of_this_thread();
  if (!opened) return;
  const auto queue = std::make_shared<RunQueue>(std::move(*opened));
  step_.recorder().leave_out_queueing([queue] { return queue->queued(); });
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
  if (is_started()) {
    throw Error(failed_precondition(
        "expected a model before the session's first step, found a session that has begun; give it "
        "to the first Reducer, ManualParallel or Trainer, right after Session::start"));
  }
  detach();
  for (Actuator* each : actuators_.all<Actuator>()) each->attach(model);
}

void SessionState::detach() {
  for (Actuator* each : actuators_.all<Actuator>()) each->release();
}

void SessionState::declare_reducing() {
  if (is_adopted_) {
    throw Error(
        failed_precondition("expected a session without adopted models for a Reducer or Trainer, "
                            "found one; keep one of them: a Reducer or Trainer follows its model "
                            "without adopt()"));
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
         std::ranges::any_of(actuators_.all<Measuring>(), &Measuring::is_wanted);
}

void SessionState::ensure_started() {
  if (is_started()) return;
  JobFacts facts;
  facts.name = job_.config().run.name;
  facts.world_size = job_.world_size();
  for (Actuator* each : actuators_.all<Actuator>()) {
    job_.agree(each->check(step_.loop()));
    require(each->negotiate(job_.all()));
    each->contribute(facts);
  }
  if (!step_.is_reducing()) facts.capabilities = {};  // nobody carries a plan out
  const bool steers = step_.is_reducing() && !facts.blocks.empty();
  if (job_.is_root() && !steers) warn_of_idle_settings();
  control_.start(std::move(facts), step_.loop());
  step_.start_at(control_.plane().start_facts().first_round);
  job_.attend([this] { return step_.attend("a call that all ranks make"); });
  // A loop whose steps will ask is asked to stop from here on, not ended.
  if (step_.is_reducing()) static_cast<void>(job_.termination().requested());
}

// Settings of blocks have no effect without blocks, or in a loop whose ranks do not agree on plans.
void SessionState::warn_of_idle_settings() const {
  const std::string but = step_.is_reducing() ? " is set, but the model has no blocks; "
                                              : " is set, but the loop has no Reducer or Trainer; ";
  for (const Measuring* each : actuators_.all<Measuring>()) {
    if (!each->is_wanted()) continue;
    job_.log().warning(each->name() + (".*" + but) + each->without());
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
  struct Asked {
    std::uint64_t is_asked = 0;
    ArrivalStamp arrival;
  };
  const WaitingScope waiting(step_.recorder());
  const Asked mine{stop_asked() ? 1u : 0u, step_.arrive()};
  const auto all = require(gather_values(job_.all(), mine, job_.between_polls()));
  ArrivalStamp latest;
  bool anywhere = false;
  for (const Asked& each : all) {
    merge_into(latest, each.arrival);
    anywhere = anywhere || each.is_asked != 0;
  }
  step_.all_arrived(mine.arrival, latest);
  if (anywhere) job_.termination().requested_elsewhere();
  return anywhere;
}

std::vector<NamedTensor> SessionState::saved_rows(RankId to) {
  const WaitingScope waiting(step_.recorder());
  std::vector<NamedTensor> saved;
  for (const Saving* each : actuators_.all<Saving>()) {
    const SavedRow* name = each->saved_row();
    if (name == nullptr) continue;
    const auto rows = require(
        gather_rows(job_.all(), each->save(), "all ranks to save", job_.between_polls(), to));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      saved.push_back({tensor_name(*name, r), at::tensor(rows[r], at::kDouble)});
    }
  }
  return saved;
}

void SessionState::load_rows(std::span<const NamedTensor> saved) {
  for (Saving* each : actuators_.all<Saving>()) {
    if (each->saved_row() != nullptr) load_row(*each, saved);
  }
}

void SessionState::load_row(Saving& saving, std::span<const NamedTensor> saved) {
  const SavedRow& name = *saving.saved_row();
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
  const Status loaded = row.ok() ? saving.load(*row) : row.status();
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
