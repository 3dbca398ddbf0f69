#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/parallel/gradient_norm.h"
#include "sdk/src/parallel/reducer_impl.h"
#include "sdk/src/session/slow_wait.h"

namespace cox {

using detail::Clock;
using detail::MicroBatchFacts;

namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, Seconds(to - from).count());
}

void check_weight(double weight) {
  if (weight >= 0 && std::isfinite(weight)) return;
  throw Error(invalid_argument("Reducer: expected a weight that is finite and not below 0, found " +
                               std::to_string(weight)));
}

}  // namespace

void Reducer::Impl::backward(StepScope& step, const at::Tensor& loss, double weight_of_loss,
                             MicroBatch which) {
  check_weight(weight_of_loss);
  if (is_reproducible()) weight_of_loss = std::nearbyint(weight_of_loss * 0x1p20) * 0x1p-20;
  if (is_last_given) {
    throw Error(failed_precondition(
        "Reducer::backward: expected average() after the last micro-batch of a step, found another "
        "micro-batch; give cox::MicroBatch::more to all but the last"));
  }
  const bool has_work = weight_of_loss != 0 && loss.defined();
  is_last_given = which == MicroBatch::last;
  if (!has_work && !is_last_given) return;
  const PhaseScope phase = step.phase(Phase::backward);
  if (has_work) {
    if (unit == 0) unit = weight_of_loss;
    run_backward(loss, {weight_of_loss, unit, state.precision().scale(), which});
    const double value = loss.item<double>();
    observe(value, weight_of_loss);
    step.loss(value, weight_of_loss);
  } else {
    if (unit == 0) backward_began = backward_ended = Clock::now();
    if (!wants_own_gradients()) reduction->flush();
  }
}

void Reducer::Impl::run_backward(const at::Tensor& loss, const MicroBatchFacts& facts) {
  MicroBatchFacts told = facts;
  if (wants_own_gradients()) told.which = MicroBatch::more;
  backward_began = Clock::now();
  const double factor = reduction->factor(told);
  reduction->begin(told);
  loss.backward(factor == 1 ? at::Tensor() : at::full_like(loss, factor));
  reduction->end();
  backward_ended = Clock::now();
}

void Reducer::Impl::observe(double loss, double weight_of_loss) {
  check_weight(weight_of_loss);
  if (weight_of_loss == 0) return;  // the mean of no samples is no number
  state.numbers().loss(loss);
  loss_sum += weight_of_loss * loss;
  weight += weight_of_loss;
}

// Noise of gradients and the largest fp16 gradient are read from .grad, which holds this rank's own
// only as long as nothing was sent: such a step sends after its backward pass.
bool Reducer::Impl::wants_own_gradients() const {
  return state.numbers().wants_gradients() || state.precision().is_scaling();
}

void Reducer::Impl::sample_gradients() {
  if (unit > 0 && state.numbers().wants_gradients()) {
    state.numbers().sample_gradients(state.precision().scale() * weight / unit);
  }
}

StepBallot Reducer::Impl::ballot() {
  StepBallot mine = state.ballot();
  if (std::isfinite(loss_sum)) {
    mine.loss_sum = loss_sum;
  } else {
    mine.nonfinite_ranks = 1;
  }
  mine.amax_max = state.numbers().amax_scaled_fp16();
  mine.weight = weight;
  mine.samples = state.recorder().report().samples;
  mine.active_ranks = is_joining ? 0 : 1;
  if (weight > 0) mine.buffers_from_min = buffers.vote(state.rank());
  return mine;
}

// One that nobody expects has no place in a bucket: ranks would drift apart.
void Reducer::Impl::check_parameters() const {
  if (reduction->exchange() == nullptr) return;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (required[p] || !parameters[p].requires_grad()) continue;
    throw Error(
        failed_precondition("Reducer: expected the parameters that required gradients at its "
                            "start, found that number " +
                            std::to_string(p) +
                            " does by now as well; let it require them before the Reducer is made "
                            "and freeze it afterwards, or use ManualParallel"));
  }
}

StepBallot Reducer::Impl::merge(const StepBallot& mine) {
  detail::SlowWait wait(state.log(), "Reducer::average", Clock::now());
  return reduction->merge(mine, [&] {
    state.pump();
    wait.look(Clock::now());
  });
}

// Gradients that nobody gave a weight would be added as they are. Zeros add nothing: what an
// optimizer may leave behind.
void Reducer::Impl::check_backward() const {
  const bool is_told = unit > 0 || weight > 0 || is_last_given || is_joining;
  if (is_told || detail::gradient_norm(parameters) == 0) return;
  throw Error(failed_precondition(
      "Reducer::average: expected gradients of Reducer::backward() in this step, found some that "
      "it did not see; call reducer.backward(step, loss, weight) instead of loss.backward(), and "
      "zero_grad() at the end of every step, also of one that is skipped"));
}

ReductionOutcome Reducer::Impl::average(StepScope& step) {
  check_parameters();
  check_backward();
  if (unit == 0 && !is_last_given) backward_began = backward_ended = Clock::now();
  sample_gradients();
  const StepBallot mine = ballot();
  reduction->flush();
  const StepBallot merged = merge(mine);
  state.check_together(merged);
  ReductionOutcome outcome;
  outcome.weight = merged.weight;
  outcome.samples = merged.samples;
  outcome.loss = merged.nonfinite_ranks > 0 ? std::numeric_limits<double>::quiet_NaN()
                                            : merged.loss_sum / merged.weight;
  outcome.repeat = merged.repeat_max != 0;
  if (merged.weight > 0 && !outcome.repeat) {
    hand_back(merged, outcome);
    step.gradient_norm(outcome.gradient_norm);
  }
  settle(merged, outcome);
  outcome.finite = outcome.finite && merged.weight > 0 && !outcome.repeat;
  outcome.stop = state.stop_agreed();
  return outcome;
}

void Reducer::Impl::hand_back(const StepBallot& merged, ReductionOutcome& outcome) {
  outcome.gradient_norm = reduction->hand_back(merged.weight, state.precision().scale());
  outcome.finite = std::isfinite(outcome.gradient_norm) && merged.nonfinite_ranks == 0 &&
                   merged.overflow_ranks == 0;
  if (!outcome.finite) blame_nonfinite();
  state.precision().advance_scaler(
      {.overflow = !outcome.finite, .amax = static_cast<float>(merged.amax_max)});
}

void Reducer::Impl::settle(const StepBallot& merged, const ReductionOutcome& outcome) {
  detail::StepRecorder& recorder = state.recorder();
  if (!outcome.finite) recorder.flag(SignalFlag::step_skipped);
  if (outcome.repeat) recorder.flag(SignalFlag::step_repeated);
  const Status followed =
      buffers.follow(merged.buffers_from_min, state.data(), state.wait_policy());
  if (!followed.ok()) throw Error(followed);
  take_times();
  state.agreed(merged);
  active_elsewhere = merged.active_ranks;
  if (merged.weight > 0) tune();
  unit = loss_sum = weight = 0;
  is_last_given = false;
}

// Which of this rank's own gradients are at fault: looked at only in a step that goes wrong.
void Reducer::Impl::blame_nonfinite() {
  const std::int64_t count = state.numbers().blame(reduction->nonfinite());
  const auto most = std::numeric_limits<std::uint32_t>::max();
  state.recorder().nonfinite_values(
      static_cast<std::uint32_t>(std::min<std::int64_t>(count, most)));
  if (count > 0) state.recorder().flag(SignalFlag::nonfinite_gradient);
}

// Before buckets are laid out anew: their times go with them.
void Reducer::Impl::take_times() {
  last.buckets.clear();
  last.backward_seconds = seconds_between(backward_began, backward_ended);
  last.exposed_seconds = 0;
  detail::StepExchange* exchange = reduction->exchange();
  if (exchange == nullptr) return;
  double seconds = 0;
  double exposed = 0;
  for (std::size_t b = 0; b < exchange->gradient_buckets(); ++b) {
    const transport::BucketTimes times = exchange->times(b);
    last.buckets.push_back({static_cast<std::int64_t>(exchange->flat(b).nbytes()),
                            seconds_between(backward_began, times.started),
                            seconds_between(backward_began, times.done),
                            Seconds(times.worked).count()});
    last.exposed_seconds =
        std::max(last.exposed_seconds, seconds_between(backward_ended, times.done));
    seconds += seconds_between(times.started, times.done);
    exposed += seconds_between(std::max(times.started, backward_ended), times.done);
  }
  state.recorder().reduction(seconds, exposed);
}

}  // namespace cox
