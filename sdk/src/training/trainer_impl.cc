#include "sdk/src/training/trainer_impl.h"

#include <torch/torch.h>

#include <utility>

#include "coxswain/error.h"
#include "sdk/src/training/keyed_random.h"

namespace cox {

bool Trainer::Impl::wants_another_step() const {
  return !stopping && position.step < options.steps;
}

void Trainer::Impl::begin_step() {
  state.set_next_step(StepId(position.step));
  scope.emplace(session.step());
  updated = false;
  const PhaseScope data = scope->phase(Phase::data);
  samples = sample_plan->batch_at(position.cursor);
  std::vector<std::uint32_t> shares = session.plan().shares;
  if (shares.empty()) shares.assign(static_cast<std::size_t>(session.world_size()), 1);
  const auto counts = SamplePlan::assign(samples.count, shares);
  if (!counts.ok()) throw Error(counts.status());
  slice = SamplePlan::slice(*counts, static_cast<std::size_t>(session.rank()));
  batch = dataset->get(sample_plan->indices(samples.cursor, slice.first, slice.count));
  scope->samples(static_cast<std::uint64_t>(batch.samples));
}

// What is resident from some later step on: optimizer state, and the snapshots.
std::int64_t Trainer::Impl::bytes_to_come() const {
  const std::int64_t optimizer_bytes = optimizer->bytes_to_come();
  if (state.config().checkpoint.snapshot_rounds == 0) return optimizer_bytes;
  std::int64_t snapshot_bytes = optimizer->state_bytes() + optimizer_bytes;
  for (const NamedTensor& named : detail::model_tensors(model)) {
    snapshot_bytes += static_cast<std::int64_t>(named.tensor.nbytes());
  }
  return optimizer_bytes + snapshot_bytes * static_cast<std::int64_t>(detail::SnapshotShelf::kKept);
}

at::Tensor Trainer::Impl::forward(const std::function<at::Tensor()>& loss_of_batch) {
  if (state.wants_rehearsal()) {
    const auto sample = batch.samples > 0 ? loss_of_batch : std::function<at::Tensor()>();
    state.rehearse(model, sample, bytes_to_come());
  }
  if (batch.samples == 0) return {};
  const auto first = samples.cursor + static_cast<std::uint64_t>(slice.first);
  detail::seed_default_generators({state.config().run.seed, position.step, first});
  state.probe_curvature(model, loss_of_batch);  // leaves random state as it is
  const PhaseScope phase = scope->phase(Phase::forward);
  return loss_of_batch();
}

void Trainer::Impl::backward(const at::Tensor& loss, double weight) {
  const double samples_here = static_cast<double>(batch.samples);
  reducer->backward(*scope, loss, weight > 0 ? weight : samples_here);
}

void Trainer::Impl::update() {
  const ReductionOutcome outcome = reducer->average(*scope);
  {
    const PhaseScope phase = scope->phase(Phase::optimizer);
    apply(outcome);
  }
  position.scaler = state.numerics().scaler();
  position.cursor = samples.next;
  ++position.step;
  updated = true;
  progress.loss = outcome.loss;
  stopping = stopping || outcome.stop;
}

void Trainer::Impl::apply(const ReductionOutcome& outcome) {
  if (options.learning_rate) {
    const double rate = options.learning_rate(position.step);
    optimizer->set_learning_rate(rate);
    scope->log("lr", rate);
  }
  const bool is_update = outcome.finite && outcome.weight > 0;
  if (is_update) {
    if (options.clip_norm > 0) clip(outcome.gradient_norm);
    optimizer->step();
    if (!std::exchange(optimizer_is_shown, true)) {
      state.show_held({.optimizer = optimizer->state_bytes()});
    }
  } else {
    ++position.skipped;
  }
  optimizer->zero_grad();
}

// Every rank scales equal gradients by an equal factor.
void Trainer::Impl::clip(double norm) {
  if (norm <= options.clip_norm) return;
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : model.parameters()) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  at::_foreach_mul_(gradients, options.clip_norm / norm);
}

void Trainer::Impl::end_step() {
  if (!updated) {
    throw Error(failed_precondition(
        "trainer step: expected step.update() before the next step, found none; call it once in "
        "every pass of the loop, on every rank"));
  }
  after_round();
  scope.reset();
  save_if_due();  // after the step's row was recorded
}

void Trainer::Impl::after_round() {
  const std::uint32_t every = state.config().checkpoint.snapshot_rounds;
  const RoundId round = state.round();
  roll_back_if_ordered();
  if (every > 0 && round.value() % every == 0) {
    snapshots.put(detail::take_snapshot(round, position, model, *optimizer));
  }
  progress.step = position.step;
  progress.consumed = position.cursor;
  progress.skipped = position.skipped;
  progress.rollbacks = position.rollbacks;
}

void Trainer::Impl::roll_back_if_ordered() {
  const RollbackOrder& order = session.plan().rollback;
  if (order.ticket <= rollback_done) return;
  rollback_done = order.ticket;
  const detail::Snapshot* snapshot = snapshots.newest_before(order.before_round);
  if (snapshot == nullptr) {
    state.log().warning("a rollback was ordered, but no snapshot is old enough; training goes on");
    return;
  }
  const std::uint64_t rollbacks = position.rollbacks + 1;
  const Status restored = detail::restore(*snapshot, model, *optimizer);
  if (!restored.ok()) throw Error(restored.with_context("rollback"));
  position = snapshot->position;
  state.numerics().roll_back(position.scaler);
  position.scaler = state.numerics().scaler();
  position.rollbacks = rollbacks;
  state.recorder().flag(SignalFlag::rolled_back);
  state.log().info("rolled back to step " + std::to_string(position.step));
}

void Trainer::Impl::save_if_due() {
  const std::uint32_t every = state.config().checkpoint.every_steps;
  const bool is_last = !wants_another_step();
  if (!folder) return;
  if (is_last) {
    if (saved_step != position.step) save(OnFailure::raise);
  } else if (every > 0 && position.step % every == 0) {
    save(OnFailure::report);
  }
}

}  // namespace cox
