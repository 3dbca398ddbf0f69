#include "sdk/src/session/step_engine.h"

#include <limits>
#include <optional>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/session/run_directory.h"
#include "sdk/src/session/step_report.h"
#include "sdk/src/session/termination.h"

namespace cox::detail {
namespace {

struct Transition {
  StepStage from;
  StepEvent event;
  StepStage to;
};

// Two reducers of one loop meet one after the other, so a step may meet again.
constexpr Transition kTransitions[] = {
    {StepStage::between, StepEvent::begin, StepStage::computing},
    {StepStage::computing, StepEvent::meet, StepStage::met},
    {StepStage::met, StepEvent::conclude, StepStage::agreed},
    {StepStage::agreed, StepEvent::meet, StepStage::met},
    {StepStage::computing, StepEvent::end, StepStage::between},
    {StepStage::met, StepEvent::end, StepStage::between},  // by an exception
    {StepStage::agreed, StepEvent::end, StepStage::between},
};

}  // namespace

const char* to_string(StepStage stage) {
  constexpr const char* kNames[] = {"over", "computing", "met", "agreed"};
  return kNames[static_cast<std::size_t>(stage)];
}

const char* to_string(StepEvent event) {
  constexpr const char* kNames[] = {"begin", "meet", "conclude", "end"};
  return kNames[static_cast<std::size_t>(event)];
}

std::optional<StepStage> after(StepStage stage, StepEvent event) {
  for (const Transition& each : kTransitions) {
    if (each.from == stage && each.event == event) return each.to;
  }
  return std::nullopt;
}

ReductionOutcome outcome_of(const StepBallot& merged) {
  ReductionOutcome outcome;
  const bool has_loss = merged.weight > 0 && merged.nonfinite_ranks == 0;
  outcome.loss =
      has_loss ? merged.loss_sum / merged.weight : std::numeric_limits<double>::quiet_NaN();
  outcome.weight = merged.weight;
  outcome.samples = merged.samples;
  outcome.repeat = merged.repeat_max != 0;
  return outcome;
}

void StepEngine::move(StepEvent event) {
  const auto next = after(stage_, event);
  if (!next) {
    throw Error(failed_precondition(concat("step ", number(),
                                           ": expected average() or close() once while the step "
                                           "is open, found ",
                                           event, " in a step that is ", stage_)));
  }
  stage_ = *next;
}

void StepEngine::start_at(RoundId first, LoopKind loop) {
  const Clock::time_point now = Clock::now();
  loop_ = loop;
  round_ = first;
  waits_.begin_round(first, now);
  recorder_.activity().move_mark(&control_.plane().mark());
  recorder_.activity().do_between_steps(Activity::outside, now);
}

void StepEngine::begin() {
  const Clock::time_point began = Clock::now();
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
  may_open_ = !is_reducing() && spacing_.may_open(begun_, now);
  move(StepEvent::begin);
}

void StepEngine::restart() {
  if (stage_ == StepStage::between) return;
  for (Steering* each : actuators_.all<Steering>()) each->restart_step();
}

StepBallot StepEngine::gather(StepBallot mine, const char* where, const MergeBallots& merge) {
  SlowWait wait = waits_.watch(where);
  mine.arrival = waits_.arrive();
  const StepBallot merged = merge(mine, [this, &wait] { waits_.pump(wait); });
  waits_.all_arrived(mine.arrival, merged.arrival);
  return merged;
}

StepBallot StepEngine::meet(StepBallot part, const char* where, const MergeBallots& merge) {
  move(StepEvent::meet);
  cast(part);
  const StepBallot merged = gather(part, where, merge);
  check_together(merged);
  return merged;
}

// Adds the parts that no loop knows: the votes of the control plane, and facts that must be equal
// on all ranks.
void StepEngine::cast(StepBallot& part) const {
  control_.plane().cast(part);
  if (!spacing_.may_open(begun_, Clock::now())) part.round_closed_min = 0;
  part.clocks_due_max = job_.is_root() && job_.clocks().is_due() ? 1 : 0;
  part.stop_max = job_.termination().requested() ? 1 : 0;
  part.fingerprint_min = part.fingerprint_max = fingerprint();
  for (Voting* each : actuators_.all<Voting>()) each->vote(part);
}

std::uint64_t StepEngine::fingerprint() const {
  Fnv1a64 hash;
  hash.add(round_.value());
  hash.add(number().value());
  hash.add(plan_of_round_);
  for (const Comparing* each : actuators_.all<Comparing>()) {
    const EqualBits bits = each->equal_bits();
    if (bits.what != nullptr) hash.add(bits.bits);
  }
  return hash.value();
}

void StepEngine::check_together(const StepBallot& merged) const {
  if (merged.fingerprint_min == merged.fingerprint_max) return;
  const std::string found = differences();
  throw Error(
      failed_precondition(concat(
          "step ", number(), ": expected the calls and values of rank 0 on all ranks, found ",
          found.empty() ? std::string("ranks that differ") : found,
          "; make the same calls on all ranks in every step, with the same settings and options")),
      Error::Scope::all_ranks);
}

// All ranks see the same merged ballot, so all of them gather the facts that differ.
std::string StepEngine::differences() const {
  std::string found;
  const auto compare = [&](const char* what, std::uint64_t mine) {
    const std::string ranks = ranks_that_differ(job_.gather(mine));
    if (!ranks.empty()) found += concat(found.empty() ? "" : "; ", what, " of rank ", ranks);
    return !ranks.empty();
  };
  compare("the round", round_.value());
  compare("the step", number().value());
  compare("the plan", plan_of_round_);
  for (Comparing* each : actuators_.all<Comparing>()) {
    const EqualBits bits = each->equal_bits();
    if (!compare(bits.what == nullptr ? each->name() : bits.what, bits.bits)) continue;
    const std::string more = each->explain_difference(job_.all());
    if (!more.empty()) found += ": " + more;
  }
  return found;
}

// A failed comparison of clocks shows in the next step's reduction, which fails as well.
void StepEngine::conclude(const StepBallot& merged, ReductionOutcome& outcome) {
  move(StepEvent::conclude);
  if (!outcome.finite) recorder_.notes().set(SignalFlag::step_skipped);
  if (outcome.repeat) recorder_.notes().set(SignalFlag::step_repeated);
  control_.plane().agree(round_, merged);
  for (Voting* each : actuators_.all<Voting>()) each->hear(merged);
  waits_.begin_round(round_.next(), Clock::now());
  may_open_ = merged.round_closed_min == 1;
  stop_agreed_ = outcome.stop = merged.stop_max != 0;
  if (stop_agreed_) job_.termination().requested_elsewhere();
  if (merged.clocks_due_max != 0)
    static_cast<void>(job_.clocks().compare(waits_.attend("the comparison of clocks")));
}

RankSignal StepEngine::signal_of(const StepReport& report) const {
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

// Collects what the actuators send with the step.
StepOutput StepEngine::collect(const StepReport& report, metrics::StepRow* row) {
  const Plan& plan = control_.plane().plan();
  if (row != nullptr) row->plan = plan.id.number;
  StepOutput output{.row = row};
  const StepEnd step{job_.rank(), round_, plan, report.samples, report.step};
  for (Reporting* each : actuators_.all<Reporting>()) each->end_step(step, output);
  return output;
}

void StepEngine::report(RankSignal signal, std::span<const BlockEvidence> evidence) {
  runtime::ControlPlane& plane = control_.plane();
  for (Reporting* each : actuators_.all<Reporting>()) {
    if (!may_open_ || signal.fragment.kind != FragmentKind::none) break;
    signal.fragment = each->next_fragment();
  }
  if (may_open_) spacing_.opened(Clock::now());
  plane.report(signal, evidence, may_open_ ? runtime::MayOpen::yes : runtime::MayOpen::no);
  plane.pump();
  if (may_open_ && told_ == Told::nothing) told_ = Told::steps;
  may_open_ = false;
}

void StepEngine::end() noexcept {
  if (told_ == Told::end) return;
  const Clock::time_point ended = Clock::now();
  move(StepEvent::end);
  const StepReport& told = recorder_.end(ended);
  std::optional<metrics::StepRow> row;
  if (control_.directory().rows() != nullptr) row = row_from(told, round_, wall_clock());
  StepOutput output = collect(told, row ? &*row : nullptr);
  const RankSignal signal = signal_of(told);
  if (row) control_.directory().rows()->push(*row, output.buckets);
  if (output.operators) control_.keep(std::move(output.operators));
  report(signal, output.evidence);
  round_ = round_.next();
  // With a reduction only conclude() completes a round, because others may wait in this round for
  // ever.
  const Clock::time_point now = Clock::now();
  recorder_.add_host(now - ended);
  if (!is_reducing()) waits_.begin_round(round_, now);
}

RankSignal StepEngine::last_signal() {
  told_ = Told::end;
  StepReport last;
  last.step = number();
  last.loss = last.gradient_norm = std::nan("");
  plan_of_round_ = control_.plane().plan().id.number;
  return signal_of(last);
}

}  // namespace cox::detail
