#include "coxswain/reducer.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/parallel/held_gradients.h"
#include "sdk/src/parallel/parameter_list.h"
#include "sdk/src/parallel/reducer_impl.h"
#include "sdk/src/parallel/start_equal.h"

namespace cox {

using detail::SessionState;

namespace {

void require(const Status& status, const char* what) {
  if (!status.ok()) throw Error(status.with_context(what));
}

}  // namespace

Reducer::Reducer(Session& session, std::vector<at::Tensor> parameters,
                 std::vector<at::Tensor> buffers) {
  SessionState& state = session.state();
  if (parameters.empty()) throw Error(invalid_argument("Reducer: expected parameters, found none"));
  parameters = detail::each_once(std::move(parameters));
  if (std::any_of(parameters.begin(), parameters.end(), [](auto& p) { return p.is_complex(); })) {
    throw Error(invalid_argument("Reducer: expected real parameters, found complex ones; "
                                 "use at::view_as_real of them"),
                Error::Scope::all_ranks);
  }
  state.declare_reducing();
  const Status layout = detail::check_equal_layout(state.data(), parameters, buffers);
  if (!layout.ok()) throw Error(layout, Error::Scope::all_ranks);
  require(detail::broadcast_from_root(state.data(), parameters), "Reducer: parameters");
  require(detail::broadcast_from_root(state.data(), buffers), "Reducer: buffers");
  state.watch_numbers(parameters);
  state.ensure_started();
  impl_ = std::make_unique<Impl>(session, std::move(parameters), std::move(buffers));
  impl_->holder = std::make_shared<const detail::GradientHolders::Holder>(
      [impl = impl_.get()](detail::MicroBatches micro_batches) {
        return detail::held_gradients(impl->state, *impl->reduction, impl->parameters,
                                      micro_batches);
      });
  state.tell_held_gradients(impl_->holder);
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
  return impl_->saved();
}

Status Reducer::load_state(std::span<const NamedTensor> state) {
  return impl_->restore(state);
}

ReductionReport Reducer::last_reduction() const {
  return impl_->last;
}

const char* Reducer::path() const {
  detail::StepExchange* exchange = impl_->reduction->exchange();
  return exchange == nullptr ? "none" : exchange->path();
}

}  // namespace cox
