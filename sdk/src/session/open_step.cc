#include "sdk/src/session/open_step.h"

#include <cmath>
#include <optional>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

void OpenStep::start_at(RoundId first) {
  round_ = first;
  recorder_.move_mark(&control_.plane().mark());
  recorder_.do_between_steps(Activity::outside, Clock::now());
}

void OpenStep::begin() {
  if (!is_reducing()) open_control_round_ = true;
  runtime::ControlPlane& plane = control_.plane();
  plane.begin_round();
  plan_of_round_ = plane.plan().id.number;
  for (Actuator* actuator : actuators_) {
    if (is_reducing()) actuator->apply(plane.plan(), round_);
    actuator->begin_step();
  }
  recorder_.begin(next_, Clock::now());
  next_ = next_.next();
  ++begun_;
}

void OpenStep::restart() {
  if (!recorder_.is_open()) return;
  for (Actuator* actuator : actuators_) actuator->restart_step();
}

StepBallot OpenStep::ballot() const {
  StepBallot ballot;
  control_.plane().cast(ballot);
  ballot.stop_max = job_.termination().requested() ? 1 : 0;
  ballot.fingerprint_min = ballot.fingerprint_max = fingerprint();
  return ballot;
}

std::uint64_t OpenStep::fingerprint() const {
  std::uint64_t print =
      (round_.value() << 24) ^ (recorder_.report().step.value() << 8) ^ plan_of_round_;
  for (const Actuator* actuator : actuators_) print ^= actuator->fingerprint();
  return print;
}

// All ranks see the same difference, so all of them ask who differs.
void OpenStep::check_together(const StepBallot& merged) const {
  if (merged.fingerprint_min == merged.fingerprint_max) return;
  throw Error(internal_error("expected all ranks in the same round, step, plan and loss scale, "
                             "found another than rank 0's on rank " +
                             job_.ranks_unlike_root(fingerprint()) + "; this rank is in step " +
                             std::to_string(number().value()) +
                             "; all ranks make the same calls of average() in every step"),
              Error::Scope::all_ranks);
}

void OpenStep::agreed(const StepBallot& merged) {
  control_.plane().agree(round_, merged);
  control_.plane().mark().begin_round(round_.next(), Clock::now());
  open_control_round_ = merged.round_closed_min == 1;
  stop_agreed_ = merged.stop_max != 0;
  if (stop_agreed_) job_.termination().requested_elsewhere();
}

SlowWait OpenStep::slow_wait(const char* where) const {
  const runtime::ControlPlane& plane = control_.plane();
  return SlowWait({job_.log(), where, round_, [&plane] { return plane.marks_here(); },
                   Seconds(job_.config().control.wait_seconds)},
                  Clock::now());
}

void OpenStep::pump(SlowWait& wait) {
  const Clock::time_point now = Clock::now();
  control_.plane().mark().beat(now);
  control_.plane().pump();
  wait.look(now);
}

RankSignal OpenStep::signal_of(const StepReport& report) const {
  RankSignal signal = begun_ > job_.config().run.warmup_steps ? signal_from(report)
                                                              : without_times(signal_from(report));
  signal.rank = job_.rank();
  signal.incarnation = control_.plane().job().incarnation;
  signal.round = round_;
  signal.plan_applied = is_reducing() ? plan_of_round_ : 0;
  if (!is_reducing()) signal.set(SignalFlag::watching);
  for (const Actuator* actuator : actuators_) actuator->sign(signal);
  return signal;
}

void OpenStep::end() noexcept {
  const StepReport& report = recorder_.end(Clock::now());
  runtime::ControlPlane& plane = control_.plane();
  std::optional<metrics::StepRow> row;
  if (control_.rows() != nullptr) {
    row = row_from(report, round_, wall_clock());
    row->plan = plane.plan().id.number;
  }
  StepOutput output{.row = row ? &*row : nullptr};
  const StepEnd step{job_.rank(), round_, plane.plan(), report.samples};
  for (Actuator* actuator : actuators_) actuator->end_step(step, output);
  RankSignal signal = signal_of(report);
  for (Actuator* actuator : actuators_) {
    if (!open_control_round_ || signal.fragment.kind != FragmentKind::none) break;
    signal.fragment = actuator->next_fragment();
  }
  if (row) control_.rows()->push(*row);
  plane.report(signal, output.evidence,
               open_control_round_ ? runtime::MayOpen::yes : runtime::MayOpen::no);
  plane.pump();
  open_control_round_ = false;
  round_ = round_.next();
  // With a reduction it is agreed() that completes a round: others may wait in this one for ever.
  if (!is_reducing()) plane.mark().begin_round(round_, Clock::now());
}

RankSignal OpenStep::last_signal() {
  StepReport last;
  last.step = recorder_.report().step;
  last.loss = last.gradient_norm = std::nan("");
  plan_of_round_ = control_.plane().plan().id.number;
  return signal_of(last);
}

}  // namespace cox::detail
