#include "sdk/src/session/open_step.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

void OpenStep::start_at(RoundId first) {
  round_ = marked_ = first;
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
  if (holds_reports_) ballot.round_closed_min = 0;
  ballot.stop_max = job_.termination().requested() ? 1 : 0;
  ballot.fingerprint_min = ballot.fingerprint_max = fingerprint();
  return ballot;
}

std::uint64_t OpenStep::fingerprint() const {
  Fnv1a64 hash;
  hash.add(round_.value());
  hash.add(recorder_.report().step.value());
  hash.add(plan_of_round_);
  for (const Actuator* actuator : actuators_) {
    const EqualBits bits = actuator->equal_bits();
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
  for (Actuator* actuator : actuators_) {
    const EqualBits bits = actuator->equal_bits();
    const std::size_t before = differences.size();
    compare(bits.what == nullptr ? actuator->name() : bits.what, bits.bits, differences);
    if (differences.size() == before) continue;
    const std::string more = actuator->explain_difference(job_.all());
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
  has_reported_ = has_reported_ || open_control_round_;
  open_control_round_ = false;
  round_ = round_.next();
  // With a reduction it is agreed() that completes a round: others may wait in this one for ever.
  if (is_reducing()) return;
  marked_ = round_;
  plane.mark().begin_round(marked_, Clock::now());
}

RankSignal OpenStep::last_signal() {
  StepReport last;
  last.step = recorder_.report().step;
  last.loss = last.gradient_norm = std::nan("");
  plan_of_round_ = control_.plane().plan().id.number;
  return signal_of(last);
}

}  // namespace cox::detail
