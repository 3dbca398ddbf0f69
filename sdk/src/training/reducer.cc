#include "coxswain/reducer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/parallel/tuned_reduction.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/equal_ranks.h"

namespace cox {

using detail::Clock;
using detail::MicroBatchFacts;
using detail::SessionState;

namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, Seconds(to - from).count());
}

void check_weight(double weight) {
  if (weight >= 0 && std::isfinite(weight)) return;
  throw Error(invalid_argument("Reducer: expected a weight that is finite and not below 0, found " +
                               std::to_string(weight)));
}

Session& following(Session& session, torch::nn::Module& model) {
  session.state().declare_reducing();
  session.state().attach(model);
  return session;
}

}  // namespace

struct Reducer::Impl {
  Impl(Session session, std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers);

  // The others must not wait for a rank that is on its way out.
  ~Impl() {
    if (std::uncaught_exceptions() == 0) return;
    reduction->leave("its training loop ended with an exception");
  }

  void backward(StepScope& step, const at::Tensor& loss, double weight_of_loss, MicroBatch which) {
    check_weight(weight_of_loss);
    if (is_reproducible()) weight_of_loss = std::nearbyint(weight_of_loss * 0x1p20) * 0x1p-20;
    if (is_last_given) {
      throw Error(failed_precondition(
          "Reducer::backward: expected average() after the last micro-batch of a step, found "
          "another micro-batch; give cox::MicroBatch::more to all but the last"));
    }
    const bool has_work = weight_of_loss != 0 && loss.defined();
    is_last_given = which == MicroBatch::last;
    if (!has_work && !is_last_given) return;
    const PhaseScope phase = step.phase(Phase::backward);
    if (has_work) {
      if (unit == 0) unit = weight_of_loss;
      run_backward(loss, {weight_of_loss, unit, formats.scale(), which});
      if (loss.is_cpu()) {
        note_loss(step, loss.item<double>(), weight_of_loss);
      } else {
        unread.push_back({loss.detach(), weight_of_loss});
        weight += weight_of_loss;
      }
    } else {
      if (unit == 0) backward_began = backward_ended = Clock::now();
      if (!wants_own_gradients()) reduction->flush();
    }
  }

  // Collects what is read of a device once, when the step is averaged: the losses of all
  // micro-batches and, while blocks run in fp16, the largest of this rank's own gradients.
  at::Tensor figures_on_device() {
    const detail::Largest amax =
        formats.is_scaling() ? numerics.amax_scaled_fp16() : detail::Largest();
    largest_fp16 = amax.here;
    std::vector<at::Tensor> values;
    for (const OwnLoss& each : unread) values.push_back(each.value.to(at::kDouble).reshape({}));
    if (amax.on_device.defined()) values.push_back(amax.on_device);
    return values.empty() ? at::Tensor() : at::stack(values);
  }

  // Waits for the device, and therefore for its backward pass: called when the gradients are under
  // way.
  void read(const at::Tensor& figures, StepScope& step) {
    if (!figures.defined()) return;
    reduction->send_off();
    const at::Tensor here = figures.to(at::kCPU);
    const double* value = here.const_data_ptr<double>();
    for (const OwnLoss& each : std::exchange(unread, {})) {
      add_loss(*value, each.weight);
      step.loss(*value++, each.weight);
    }
    if (value < here.const_data_ptr<double>() + here.numel())
      largest_fp16 = std::max(largest_fp16, static_cast<float>(*value));
  }

  void note_loss(StepScope& step, double loss, double weight_of_loss) {
    observe(loss, weight_of_loss);
    step.loss(loss, weight_of_loss);
  }

  void observe(double loss, double weight_of_loss) {
    check_weight(weight_of_loss);
    if (weight_of_loss == 0) return;  // the mean of no samples is no number
    add_loss(loss, weight_of_loss);
    weight += weight_of_loss;
  }

  // Its weight counts already, or is about to.
  void add_loss(double loss, double weight_of_loss) {
    numerics.loss(loss);
    loss_sum += weight_of_loss * loss;
  }

  ReductionOutcome average(StepScope& step) {
    const at::Tensor figures = figures_on_device();
    check_parameters();
    check_backward();
    if (unit == 0 && !is_last_given) backward_began = backward_ended = Clock::now();
    sample_gradients();
    weights.take();
    reduction->flush();
    read(figures, step);
    StepBallot mine = ballot();
    mine.arrival = state.step().arrive();
    const StepBallot merged = merge(mine);
    state.step().all_arrived(mine.arrival, merged.arrival);
    state.step().check_together(merged);
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
    outcome.stop = state.step().stop_agreed();
    return outcome;
  }

  void abandon() {
    is_abandoned = is_last_given = true;
    backward_ended = Clock::now();
    if (unit == 0) backward_began = backward_ended;
  }

  // Parts of backward() and average().
  void run_backward(const at::Tensor& loss, const MicroBatchFacts& facts) {
    MicroBatchFacts told = facts;
    if (wants_own_gradients()) told.which = MicroBatch::more;
    backward_began = Clock::now();
    const double factor = reduction->factor(told);
    reduction->begin(told);
    loss.backward(factor == 1 ? at::Tensor() : at::full_like(loss, factor));
    reduction->end();
    backward_ended = Clock::now();
  }

  // Returns whether this rank's own gradients must be seen before they are added to others'. Noise
  // of gradients and the largest fp16 gradient are read from .grad, which holds this rank's own
  // only as long as nothing was sent: such a step sends after its backward pass.
  bool wants_own_gradients() const { return numerics.wants_gradients() || formats.is_scaling(); }

  // One that nobody expects has no place in a bucket: ranks would drift apart.
  void check_parameters() const {
    const auto unexpected = reduction.unexpected();
    if (!unexpected) return;
    throw Error(
        failed_precondition("Reducer: expected the parameters that required gradients at its "
                            "start, found that number " +
                            std::to_string(*unexpected) +
                            " does by now as well; let it require them before the Reducer is made "
                            "and freeze it afterwards, or use ManualParallel"));
  }

  // Gradients that nobody gave a weight would be added as they are. Zeros add nothing: what an
  // optimizer may leave behind.
  void check_backward() const {
    const bool is_told = unit > 0 || weight > 0 || is_last_given || is_joining;
    if (is_told || detail::l2_norm(detail::gradients_of(parameters)) == 0) return;
    throw Error(failed_precondition(
        "Reducer::average: expected gradients of Reducer::backward() in this step, found some that "
        "it did not see; call reducer.backward(step, loss, weight) instead of loss.backward(), and "
        "zero_grad() at the end of every step, also of one that is skipped"));
  }

  void sample_gradients() {
    if (unit > 0 && !is_abandoned && numerics.wants_gradients()) {
      numerics.sample_gradients(formats.scale() * weight / unit);
    }
  }

  StepBallot ballot() {
    StepBallot mine = state.step().ballot();
    if (std::isfinite(loss_sum)) {
      mine.loss_sum = loss_sum;
    } else {
      mine.nonfinite_ranks = 1;
    }
    mine.amax_max = largest_fp16;
    mine.weight = weight;
    mine.repeat_max = is_abandoned ? 1 : 0;
    mine.samples = state.step().recorder().report().samples;
    mine.active_ranks = is_joining ? 0 : 1;
    if (weight > 0) mine.buffers_from_min = buffers.vote(state.job().rank());
    return mine;
  }

  StepBallot merge(const StepBallot& mine) {
    detail::SlowWait wait = state.step().slow_wait("Reducer::average");
    return reduction->merge(mine, [&] { state.step().pump(wait); });
  }

  // Watches what may have to wait after the step's reduction; `wait` is made only if it does.
  detail::BetweenPolls watched(std::optional<detail::SlowWait>& wait) {
    return [this, &wait] {
      if (!wait) wait.emplace(state.step().slow_wait("Reducer::average"));
      state.step().pump(*wait);
    };
  }

  void hand_back(const StepBallot& merged, ReductionOutcome& outcome) {
    outcome.gradient_norm = reduction->hand_back(merged.weight, formats.scale());
    outcome.finite = std::isfinite(outcome.gradient_norm) && merged.nonfinite_ranks == 0 &&
                     merged.overflow_ranks == 0;
    if (!outcome.finite) blame_nonfinite();
    formats.advance_scaler(
        {.overflow = !outcome.finite, .amax = static_cast<float>(merged.amax_max)});
  }

  void settle(const StepBallot& merged, const ReductionOutcome& outcome) {
    detail::StepRecorder& recorder = state.step().recorder();
    if (!outcome.finite) recorder.flag(SignalFlag::step_skipped);
    if (outcome.repeat) recorder.flag(SignalFlag::step_repeated);
    std::optional<detail::SlowWait> wait;
    detail::require(buffers.follow(merged.buffers_from_min, state.job().data(), watched(wait)));
    take_times();
    state.step().agreed(merged);
    active_elsewhere = merged.active_ranks;
    count_nonfinite(merged, outcome);
    if (merged.weight > 0) tune();
    unit = loss_sum = weight = 0;
    is_last_given = is_abandoned = false;
  }

  // Equal on all ranks, so all of them end together. A step that nobody has samples for says
  // nothing.
  void count_nonfinite(const StepBallot& merged, const ReductionOutcome& outcome) {
    if (merged.weight <= 0 || outcome.repeat) return;
    nonfinite_streak = outcome.finite ? 0 : nonfinite_streak + 1;
    const std::uint32_t limit = state.job().config().guard.nonfinite_limit;
    if (nonfinite_streak == 1) first_trouble = trouble_here(merged);
    if (limit == 0 || nonfinite_streak < limit) return;
    const std::string blamed =
        numerics.blamed().empty() ? "" : ", lately in block " + numerics.blamed();
    throw Error(
        failed_precondition("guard.nonfinite_limit: expected a finite step at least every " +
                            std::to_string(limit) + " steps, found none since step " +
                            std::to_string(state.step().number().value() + 1 - nonfinite_streak) +
                            "; " + detail::first_text(state.job().all(), first_trouble + blamed) +
                            "; resume from the newest save with a lower learning rate or in fp32"),
        Error::Scope::all_ranks, ExitCode::hopeless);
  }

  // Tells what this rank saw first in a streak of steps that are not finite; empty where it is in
  // order.
  std::string trouble_here(const StepBallot& merged) const {
    const std::string rank = " of rank " + std::to_string(state.job().rank().value());
    detail::FiniteLook look(parameters);
    look.wait();
    const auto bad = std::ranges::find_if(look.nonfinite(), [](auto count) { return count > 0; });
    if (bad != look.nonfinite().end()) {
      const auto p = static_cast<std::size_t>(bad - look.nonfinite().begin());
      return weights.text_of(p) + rank + " itself holds NaN or infinity";
    }
    if (!std::isfinite(loss_sum)) return "the loss" + rank + " was the first";
    if (state.step().recorder().report().nonfinite_values > 0)
      return "gradients" + rank + " were the first";
    const bool is_sum = merged.overflow_ranks == 0 && merged.nonfinite_ranks == 0;
    return is_sum ? "the sum of the ranks' gradients was the first" : std::string();
  }

  // Which of this rank's own gradients are at fault: looked at only in a step that goes wrong.
  void blame_nonfinite() {
    const std::int64_t count = numerics.blame(reduction->nonfinite(), state.step().number());
    const std::uint32_t told = detail::saturated(static_cast<std::uint64_t>(count));
    state.step().recorder().nonfinite_values(told);
    if (count > 0) state.step().recorder().flag(SignalFlag::nonfinite_gradient);
  }

  // Before buckets are laid out anew: their times go with them.
  void take_times() {
    last.buckets.clear();
    last.backward_seconds = seconds_between(backward_began, backward_ended);
    last.exposed_seconds = 0;
    if (reduction.exchange() == nullptr) return;
    double seconds = 0;
    double exposed = 0;
    for (const auto& [bytes, times] : reduction->sent()) {
      last.buckets.push_back({bytes, seconds_between(backward_began, times.started),
                              seconds_between(backward_began, times.done),
                              Seconds(times.worked).count()});
      last.exposed_seconds =
          std::max(last.exposed_seconds, seconds_between(backward_ended, times.done));
      seconds += seconds_between(times.started, times.done);
      exposed += seconds_between(std::max(times.started, backward_ended), times.done);
    }
    state.step().recorder().reduction(seconds, exposed);
    state.step().note_buckets(last);
  }

  // What buckets cost this rank: adding and copying, and the wait after backward.
  void tune() {
    double seconds = last.exposed_seconds;
    for (const BucketReport& bucket : last.buckets) seconds += bucket.worked_seconds;
    const detail::StepExchange* former = reduction.exchange();
    std::optional<detail::SlowWait> wait;
    reduction.tune(seconds, watched(wait));
    if (reduction.exchange() != former) show_held();
  }

  void show_held() {
    metrics::HeldBytes held;
    for (const at::Tensor& parameter : parameters) {
      held.parameters += static_cast<std::int64_t>(parameter.nbytes());
      if (parameter.requires_grad())
        held.gradients += static_cast<std::int64_t>(parameter.nbytes());
    }
    for (const auto& bucket : reduction->sent()) held.buckets += bucket.bytes;
    state.control().show_held(held);
  }

  // A prediction must hold in every step, so steps that keep gradients longer than others count,
  // and formats that may follow those in force.
  detail::GradientHolding held_gradients(detail::MicroBatches micro_batches) const {
    // Reproducible mode adds every micro-batch up in its buckets, but keeps the averages.
    const bool keeps_sums = micro_batches == detail::MicroBatches::several || is_reproducible();
    const bool sends_late = numerics.samples_gradients() || formats.may_scale();
    detail::GradientHolding holding;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].requires_grad()) continue;
      if (keeps_sums) holding.resident_bytes += static_cast<std::int64_t>(parameters[p].nbytes());
      const bool moves = !sends_late && reduction->moves_when_ready(p);
      if (keeps_sums || moves) holding.released.push_back(parameters[p]);
    }
    return holding;
  }

  bool is_reproducible() const { return state.job().config().reduction.reproducible; }

  Session session;  // keeps the state alive
  SessionState& state;
  detail::FormatActuator& formats;
  detail::NumericsWatch& numerics;
  const std::vector<at::Tensor> parameters;
  detail::BufferSync buffers;
  detail::TunedReduction reduction;
  detail::WeightCheck weights;
  detail::AddedActuator<detail::WeightCheck> added_weights;
  std::optional<detail::ReadyHooks> hooks;
  std::shared_ptr<const detail::GradientHolders::Holder> holder;  // speaks for this reducer
  bool is_joining = false;

  // The open step. Gradients are kept in units of the first micro-batch's weight, so that a single
  // micro-batch needs no scaling at all.
  struct OwnLoss {
    at::Tensor value;
    double weight;
  };
  std::vector<OwnLoss> unread;
  double unit = 0;
  double loss_sum = 0;
  double weight = 0;
  float largest_fp16 = 0;
  bool is_last_given = false;
  bool is_abandoned = false;
  std::uint32_t nonfinite_streak = 0;  // steps in a row that were not finite
  std::string first_trouble;           // what this rank saw at its start
  std::uint64_t active_elsewhere = 0;  // ranks with steps left, in the last merged ballot
  Clock::time_point backward_began{};  // where there was none: it gave its zeros
  Clock::time_point backward_ended{};
  ReductionReport last;  // of the step before
};

Reducer::Impl::Impl(Session session_in, std::vector<at::Tensor> parameters_in,
                    std::vector<at::Tensor> buffers_in)
    : session(std::move(session_in)),
      state(session.state()),
      formats(session.capabilities().formats),
      numerics(session.capabilities().numerics),
      parameters(std::move(parameters_in)),
      buffers(std::move(buffers_in)),
      reduction({state.job().data(), state.job().wait_policy(), state.job().config().reduction,
                 state.job().devices(), Seconds(state.job().config().control.nccl_seconds),
                 [this] { state.control().send_masks_off(); }},
                parameters),
      weights(parameters,
              state.job().world_size() == 1 ? 0 : state.job().config().reduction.verify_steps,
              session.capabilities().blocks),
      added_weights(state.actuators(), weights) {
  show_held();
  const Status link = state.job().devices().news();
  if (!link.ok() && state.job().rank() == kRoot) state.job().log().warning(link.message());
  const detail::StepExchange* exchange = reduction.exchange();
  if (exchange == nullptr) return;  // nothing leaves early, and a hook costs a microsecond
  hooks.emplace(parameters, [this](std::size_t parameter) { reduction->ready(parameter); });
  if (state.job().rank() != kRoot || exchange->note().empty()) return;
  state.job().log().warning(exchange->note());
}

Reducer::Reducer(Session& session, torch::nn::Module& model)
    : Reducer(following(session, model), model.parameters(), model.buffers()) {}

Reducer::Reducer(Session& session, std::vector<at::Tensor> parameters,
                 std::vector<at::Tensor> buffers) {
  SessionState& state = session.state();
  if (parameters.empty()) throw Error(invalid_argument("Reducer: expected parameters, found none"));
  parameters = detail::each_once(std::move(parameters));
  if (std::ranges::any_of(parameters, [](auto& p) { return p.is_complex(); })) {
    throw Error(
        invalid_argument(
            "Reducer: expected real parameters, found complex ones; use at::view_as_real of them"),
        Error::Scope::all_ranks);
  }
  state.declare_reducing();
  transport::Communicator& ranks = state.job().data();
  detail::require(detail::check_equal_layout(ranks, parameters, buffers), Error::Scope::all_ranks);
  detail::require(detail::broadcast_from_root(ranks, parameters), "Reducer: parameters");
  detail::require(detail::broadcast_from_root(ranks, buffers), "Reducer: buffers");
  session.capabilities().numerics.watch(parameters);
  state.ensure_started();
  impl_ = std::make_unique<Impl>(session, std::move(parameters), std::move(buffers));
  impl_->holder = std::make_shared<const detail::GradientHolders::Holder>(
      [impl = impl_.get()](detail::MicroBatches micro_batches) {
        return impl->held_gradients(micro_batches);
      });
  session.capabilities().memory.gradient_holders().add(impl_->holder);
}

Reducer::Reducer(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::backward(StepScope& step, const at::Tensor& loss, double weight, MicroBatch which) {
  impl_->backward(step, loss, weight, which);
}

void Reducer::observe(StepScope& step, double loss, double weight) {
  impl_->observe(loss, weight);
  step.loss(loss, weight);
}

void Reducer::abandon() {
  impl_->abandon();
}

ReductionOutcome Reducer::average(StepScope& step) {
  const PhaseScope phase = step.phase(Phase::communication);
  return impl_->average(step);
}

void Reducer::join(const std::function<void(StepScope&, const ReductionOutcome&)>& update) {
  impl_->is_joining = true;
  do {
    StepScope step = impl_->session.step();
    for (const at::Tensor& p : impl_->parameters) p.mutable_grad().reset();  // an earlier average
    const ReductionOutcome outcome = average(step);
    if (impl_->active_elsewhere > 0) update(step, outcome);
  } while (impl_->active_elsewhere > 0);
  impl_->is_joining = false;
}

std::vector<NamedTensor> Reducer::state() const {
  return impl_->reduction.saved();
}

Status Reducer::load_state(std::span<const NamedTensor> state) {
  const Status restored = impl_->reduction.restore(state);
  impl_->show_held();
  return restored;
}

ReductionReport Reducer::last_reduction() const {
  return impl_->last;
}

const char* Reducer::path() const {
  detail::StepExchange* exchange = impl_->reduction.exchange();
  return exchange == nullptr ? "none" : impl_->reduction->path();
}

}  // namespace cox
