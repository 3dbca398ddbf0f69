#include "coxswain/reducer.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/flat_buckets.h"
#include "sdk/src/parallel/gradient_norm.h"
#include "sdk/src/parallel/start_equal.h"
#include "sdk/src/session/session_state.h"

namespace cox {

using detail::SessionState;

namespace {

void require(const Status& status, const char* what) {
  if (!status.ok()) throw Error(status.with_context(what));
}

std::span<std::byte> bytes_of(at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.mutable_data_ptr()),
          static_cast<std::size_t>(flat.nbytes())};
}

transport::Reduction sum_of(const at::Tensor& flat) {
  return flat.scalar_type() == at::kDouble ? transport::sum_f64() : transport::sum_f32();
}

metrics::HeldBytes held_by(detail::FlatBuckets& buckets) {
  metrics::HeldBytes held;
  for (const at::Tensor& parameter : buckets.parameters()) {
    held.parameters += static_cast<std::int64_t>(parameter.nbytes());
    if (parameter.requires_grad()) held.gradients += static_cast<std::int64_t>(parameter.nbytes());
  }
  for (const detail::Bucket& bucket : buckets.buckets()) {
    held.buckets += static_cast<std::int64_t>(bucket.flat.nbytes());
  }
  return held;
}

}  // namespace

struct Reducer::Impl {
  Impl(SessionState& session, std::vector<at::Tensor> parameters)
      : state(session), buckets(std::move(parameters)) {}

  StepBallot merge_ballots(StepBallot mine);
  void sum_buckets();
  double average_gradients(double total);
  void blame_nonfinite();

  SessionState& state;
  detail::FlatBuckets buckets;
  // Gradients of the open step are kept in units of the first micro-batch's weight, so that a
  // single micro-batch needs no scaling at all.
  double unit = 0;
  double loss_sum = 0;
  double weight = 0;
};

Reducer::Reducer(Session& session, std::vector<at::Tensor> parameters,
                 std::vector<at::Tensor> buffers) {
  SessionState& state = session.state();
  if (parameters.empty()) throw Error(invalid_argument("Reducer: expected parameters, found none"));
  state.declare_reducing();
  const Status layout = detail::check_equal_layout(state.data(), parameters, buffers);
  if (!layout.ok()) throw Error(layout, Error::Scope::all_ranks);
  require(detail::broadcast_from_root(state.data(), parameters), "Reducer: parameters");
  require(detail::broadcast_from_root(state.data(), buffers), "Reducer: buffers");
  state.watch_numbers(parameters);
  state.ensure_started();
  impl_ = std::make_unique<Impl>(state, std::move(parameters));
  state.show_held(held_by(impl_->buckets));
}

Reducer::Reducer(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::backward(StepScope& step, const at::Tensor& loss, double weight) {
  if (weight == 0 || !loss.defined()) return;
  const PhaseScope phase = step.phase(Phase::backward);
  if (impl_->unit == 0) impl_->unit = weight;
  const double relative = weight / impl_->unit * impl_->state.numerics().scale();
  loss.backward(relative == 1 ? at::Tensor() : at::full_like(loss, relative));
  observe(step, loss.item<double>(), weight);
}

void Reducer::observe(StepScope& step, double loss, double weight) {
  impl_->state.numbers().loss(loss);
  impl_->loss_sum += weight * loss;
  impl_->weight += weight;
  step.loss(loss, weight);
}

StepBallot Reducer::Impl::merge_ballots(StepBallot mine) {
  if (std::isfinite(loss_sum)) {
    mine.loss_sum = loss_sum;
  } else {
    mine.nonfinite_ranks = 1;
  }
  mine.amax_max = state.numbers().amax_scaled_fp16();
  mine.weight = weight;
  mine.samples = state.recorder().report().samples;
  auto& communicator = state.data();
  if (communicator.size() == 1) return mine;
  auto request = communicator.start_all_reduce(
      std::as_writable_bytes(std::span<StepBallot>(&mine, 1)), transport::merging<StepBallot>());
  require(request.ok() ? ok_status() : request.status(), "step reduction");
  require(transport::wait_with(communicator, *request, state.wait_policy(), [&] { state.pump(); }),
          "step reduction");
  return mine;
}

void Reducer::Impl::sum_buckets() {
  auto& communicator = state.data();
  for (detail::Bucket& bucket : buckets.buckets()) {
    auto request = communicator.start_all_reduce(bytes_of(bucket.flat), sum_of(bucket.flat));
    require(request.ok() ? ok_status() : request.status(), "gradient reduction");
    require(
        transport::wait_with(communicator, *request, state.wait_policy(), [&] { state.pump(); }),
        "gradient reduction");
  }
}

double Reducer::Impl::average_gradients(double total) {
  const double scale = state.numerics().scale();
  const double divisor = unit > 0 ? total / unit * scale : 1;
  if (state.world_size() == 1) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : buckets.parameters()) {
      if (p.grad().defined()) gradients.push_back(p.grad());
    }
    const torch::NoGradGuard no_grad;
    if (divisor != 1) at::_foreach_div_(gradients, divisor);
    return detail::l2_norm(gradients);
  }
  buckets.fill(unit > 0 ? unit : 1);
  sum_buckets();
  buckets.divide(total * scale);
  std::vector<at::Tensor> flats;
  for (const detail::Bucket& bucket : buckets.buckets()) flats.push_back(bucket.gradients());
  return detail::l2_norm(flats);
}

// Which of this rank's own gradients are at fault: looked at only in a step that goes wrong.
void Reducer::Impl::blame_nonfinite() {
  const std::int64_t count = state.numbers().blame(buckets.parameters());
  const auto most = std::numeric_limits<std::uint32_t>::max();
  state.recorder().nonfinite_values(
      static_cast<std::uint32_t>(std::min<std::int64_t>(count, most)));
  if (count > 0) state.recorder().flag(SignalFlag::nonfinite_gradient);
}

ReductionOutcome Reducer::average(StepScope& step) {
  Impl& impl = *impl_;
  const PhaseScope phase = step.phase(Phase::communication);
  const StepBallot merged = impl.merge_ballots(impl.state.ballot());
  impl.state.check_together(merged);
  ReductionOutcome outcome;
  outcome.weight = merged.weight;
  outcome.samples = merged.samples;
  outcome.loss = merged.nonfinite_ranks > 0 ? std::numeric_limits<double>::quiet_NaN()
                                            : merged.loss_sum / merged.weight;
  if (merged.weight > 0) {
    if (impl.unit > 0) {
      const double scale = impl.state.numerics().scale();
      impl.state.numbers().sample_gradients(scale * impl.weight / impl.unit);
    }
    outcome.gradient_norm = impl.average_gradients(merged.weight);
    outcome.finite = std::isfinite(outcome.gradient_norm) && merged.nonfinite_ranks == 0;
    if (!outcome.finite) impl.blame_nonfinite();
    if (impl.state.world_size() > 1) impl.buckets.hand_back();
    step.gradient_norm(outcome.gradient_norm);
  }
  if (!outcome.finite) impl.state.recorder().flag(SignalFlag::step_skipped);
  if (merged.weight > 0) {
    impl.state.numerics().advance_scaler(
        {.overflow = !outcome.finite, .amax = static_cast<float>(merged.amax_max)});
  }
  impl.state.agreed(merged);
  outcome.stop = impl.state.stop_agreed();
  impl.unit = impl.loss_sum = impl.weight = 0;
  return outcome;
}

}  // namespace cox
