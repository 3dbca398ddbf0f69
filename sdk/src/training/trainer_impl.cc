#include "sdk/src/training/trainer_impl.h"

#include <torch/torch.h>

#include <exception>
#include <utility>

#include "coxswain/clip.h"
#include "coxswain/error.h"
#include "sdk/src/training/keyed_random.h"

namespace cox {

bool Trainer::Impl::wants_another_step() const {
  return !is_stopped() && position.step < options.steps;
}

void Trainer::Impl::stop() {
  steps_at_stop = scope ? scope->number() + 1 : position.step;
}

void Trainer::Impl::begin_step() {
  state.set_next_step(StepId(position.step));
  scope.emplace(session.step());
  has_backward = updated = false;
  const PhaseScope data = scope->phase(Phase::data);
  step = queue->take(share_request());
  scope->samples(static_cast<std::uint64_t>(step.batch.samples));
  if (statistics) statistics->begin_step();
  buffers->begin_step();
}

detail::ShareRequest Trainer::Impl::share_request() const {
  const Plan& plan = session.plan();
  detail::ShareRequest request;
  request.cursor = position.cursor;
  request.step_samples =
      plan.step_samples > 0 ? static_cast<std::int64_t>(plan.step_samples) : options.global_batch;
  request.micro_batch = options.micro_batch;
  request.shares = plan.shares;
  request.rank = state.rank();
  request.world_size = session.world_size();
  return request;
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

void Trainer::Impl::rehearse(const std::function<at::Tensor()>& sample_loss) {
  if (!state.wants_rehearsal()) return;
  const auto sample = step.batch.samples > 0 ? sample_loss : std::function<at::Tensor()>();
  state.rehearse({model, sample, bytes_to_come(), micro_batches_of_a_step()});
}

// Where shares or the batch are steered, this rank may have several in a later step.
detail::MicroBatches Trainer::Impl::micro_batches_of_a_step() const {
  const bool is_steered = state.config().shares.mode == PolicyMode::on ||
                          state.config().accumulation.mode == PolicyMode::on;
  const bool has_several =
      step.share.own_micro_batches > 1 || (options.micro_batch > 0 && is_steered);
  return has_several ? detail::MicroBatches::several : detail::MicroBatches::one;
}

at::Tensor Trainer::Impl::forward(const std::function<at::Tensor()>& loss_of_batch) {
  if (options.micro_batch > 0) {
    throw Error(
        failed_precondition("trainer step: expected accumulate() for a share of several "
                            "micro-batches, found forward(); "
                            "use accumulate(), or leave TrainerOptions::micro_batch at 0"));
  }
  rehearse(loss_of_batch);
  if (step.batch.samples == 0) return {};
  const auto first = step.share.step.cursor + static_cast<std::uint64_t>(step.share.slice.first);
  detail::seed_default_generators({state.config().run.seed, position.step, first});
  state.probe_curvature(model, loss_of_batch);  // leaves random state as it is
  const PhaseScope phase = scope->phase(Phase::forward);
  return loss_of_batch();
}

void Trainer::Impl::backward(const at::Tensor& loss, std::optional<double> weight) {
  has_backward = true;
  reducer->backward(*scope, loss, weight.value_or(static_cast<double>(step.batch.samples)));
}

Batch Trainer::Impl::part_of_batch(const SampleSlice& part) const {
  const auto rows = [&part](const at::Tensor& all) {
    return all.defined() ? all.narrow(0, part.first, part.count) : all;
  };
  return {rows(step.batch.inputs), rows(step.batch.targets), part.count};
}

void Trainer::Impl::accumulate(const LossOf& loss_of, const WeightOf& weight_of) {
  has_backward = true;
  rehearse([&] { return loss_of(part_of_batch(step.share.part(0))); });
  for (std::uint64_t i = 0; i < step.share.own_micro_batches; ++i) {
    take_micro_batch(i, loss_of, weight_of);
  }
}

void Trainer::Impl::take_micro_batch(std::uint64_t i, const LossOf& loss_of,
                                     const WeightOf& weight_of) {
  const SampleSlice part = step.share.part(i);
  const Batch samples = part_of_batch(part);
  const auto first = static_cast<std::uint64_t>(step.share.slice.first + part.first);
  detail::seed_default_generators(
      {state.config().run.seed, position.step, step.share.step.cursor + first});
  if (i == 0) state.probe_curvature(model, [&] { return loss_of(samples); });
  if (statistics) statistics->begin_micro_batch(step.share.first_micro_batch + i);
  at::Tensor loss;
  {
    const PhaseScope phase = scope->phase(Phase::forward);
    loss = loss_of(samples);
  }
  const bool is_last = i + 1 == step.share.own_micro_batches;
  const double weight = weight_of ? weight_of(samples) : static_cast<double>(part.count);
  reducer->backward(*scope, loss, weight, is_last ? MicroBatch::last : MicroBatch::more);
  if (statistics) statistics->end_micro_batch();
}

// A step that is skipped leaves nothing behind that is not finite; the forward pass may have
// written it into running statistics.
void Trainer::Impl::settle_buffers(const ReductionOutcome& outcome) {
  if (outcome.finite) return fold_statistics();
  if (statistics) statistics->put_back();
  buffers->put_back_nonfinite();
}

void Trainer::Impl::fold_statistics() {
  if (!statistics) return;
  const PhaseScope phase = scope->phase(Phase::communication);
  const Status folded = statistics->fold(
      state.data(), state.wait_policy(), [this] { state.pump(); }, step.share.micro_batches,
      step.share.most_on_a_rank);
  if (!folded.ok()) throw Error(folded.with_context("running statistics"));
}

// The same samples again, with the same random numbers, in a step of the same number.
void Trainer::Impl::repeat() {
  if (statistics) statistics->put_back();
  buffers->put_back();
  drop_gradients();
  ++progress.repeated;
  updated = true;
}

void Trainer::Impl::check_update() const {
  if (updated) {
    throw Error(failed_precondition(
        "trainer step: expected one step.update() in a pass of the loop, found a second one"));
  }
  if (has_backward || step.batch.samples == 0) return;
  throw Error(failed_precondition(
      "trainer step: expected step.backward(loss) or step.accumulate() before step.update(), found "
      "neither; a plain loss.backward() is not seen by the trainer, and step.backward(loss, 0) is "
      "for samples that are not to count"));
}

void Trainer::Impl::update() {
  check_update();
  const ReductionOutcome outcome = reducer->average(*scope);
  stopping = stopping || outcome.stop;
  if (outcome.repeat) return repeat();
  settle_buffers(outcome);
  {
    const PhaseScope phase = scope->phase(Phase::optimizer);
    apply(outcome);
  }
  position.scaler = state.precision().scaler();
  position.cursor = step.share.step.next;
  ++position.step;
  updated = true;
  progress.loss = outcome.loss;
  progress.consumed = position.cursor;
  progress.skipped = position.skipped;
}

void Trainer::Impl::apply(const ReductionOutcome& outcome) {
  if (options.learning_rate) {
    const double rate = options.learning_rate(position.step);
    optimizer->set_learning_rate(rate);
    scope->log("lr", rate);
  }
  if (outcome.finite) {
    if (options.clip_norm > 0) {
      clip_by_global_norm(parameters, options.clip_norm, {.known_norm = outcome.gradient_norm});
    }
    optimizer->step();
    if (!std::exchange(optimizer_is_shown, true)) {
      state.show_held({.optimizer = optimizer->state_bytes()});
    }
  } else {
    ++position.skipped;
  }
  drop_gradients();
}

// The optimizer may hold only a part of the model.
void Trainer::Impl::drop_gradients() {
  optimizer->zero_grad();
  for (const at::Tensor& p : parameters) p.mutable_grad().reset();
}

void Trainer::Impl::end_step() {
  if (!updated) {
    throw Error(failed_precondition(
        "trainer step: expected step.update() before the next step, found none; call it once in "
        "every pass of the loop, on every rank"));
  }
  const RoundId round = state.round();
  roll_back_if_ordered();
  scope.reset();
  // What the step leaves behind (its row, magnitudes) is put away now.
  keep_snapshot(round);
  tell_progress();
  save_if_due();
}

// A loop that was left by `break` has its open step in here.
Trainer::Impl::~Impl() {
  const bool is_unsaved = scope && folder && saved_step != position.step;
  if (!is_unsaved || std::uncaught_exceptions() > 0) return;
  state.log().warning(
      "the training loop was left in the middle of a step, so what came after the last save is not "
      "saved; end the loop by trainer.stop()");
}

void Trainer::Impl::keep_snapshot(RoundId round) {
  const std::uint32_t every = state.config().checkpoint.snapshot_rounds;
  if (every == 0 || round.value() % every != 0) return;
  detail::Snapshot snapshot = detail::take_snapshot(round, position, model, *optimizer);
  if (is_reproducible()) snapshot.reducer = reducer->state();
  snapshot.fp8 = state.numbers().fp8_state();
  snapshots.put(std::move(snapshot));
}

void Trainer::Impl::tell_progress() {
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
  if (is_reproducible()) state.agree(reducer->load_state(snapshot->reducer));
  static_cast<void>(state.numbers().load_fp8(snapshot->fp8));  // its own, so it fits
  position = snapshot->position;
  saved_step = ~0ull;  // what is on the disk of later steps was given up
  state.precision().roll_back(position.scaler);
  position.scaler = state.precision().scaler();
  position.rollbacks = rollbacks;
  state.recorder().flag(SignalFlag::rolled_back);
  state.log().info("rolled back to step " + std::to_string(position.step));
}

// Of an open step only its end is a state that a run can go on from.
void Trainer::Impl::save_now() {
  if (scope && is_looping && !updated) {
    throw Error(failed_precondition("save: expected it after step.update() or outside of the loop, "
                                    "found a step that has begun and was not updated yet"),
                Error::Scope::all_ranks);
  }
  check_folder();
  if (scope && is_looping) {
    save_is_asked = true;
    return;
  }
  if (scope && updated) end_step();  // of a loop that was left by `break`
  save(OnFailure::raise);
}

// By its end, `break` or an exception: nobody reads the data set from now on. After a `break` a
// save that was asked for is still to be written.
void Trainer::Impl::leave_loop() noexcept try {
  is_looping = false;
  if (queue) queue->forget();
  const bool is_left_by_break = scope && updated && std::uncaught_exceptions() == 0;
  if (is_left_by_break && save_is_asked) end_step();
} catch (const std::exception& error) {
  state.log().error(error.what());
}

void Trainer::Impl::save_if_due() {
  const std::uint32_t every = state.config().checkpoint.every_steps;
  const bool is_last = !wants_another_step();
  const bool is_asked = std::exchange(save_is_asked, false);
  if (!folder) return;
  if (saved_step == position.step) return;  // a repeated attempt, or the end
  if (is_last || is_asked) {
    save(OnFailure::raise);
  } else if (every > 0 && position.step > 0 && position.step % every == 0) {
    save(OnFailure::report);
  }
}

}  // namespace cox
