#include "sdk/src/training/step_attempt.h"

#include <torch/torch.h>

#include <exception>

#include "coxswain/error.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/training/out_of_memory.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {

void StepAttempt::take(TrainingData& data) {
  const PhaseScope phase = scope_.phase(Phase::data);
  samples_ = data.take();
  scope_.samples(static_cast<std::uint64_t>(samples_.batch.samples));
  parts_.buffers.begin_step();
}

at::Tensor StepAttempt::forward(const std::function<at::Tensor()>& loss_of_batch) {
  if (parts_.options.micro_batch > 0) {
    throw Error(failed_precondition(
        "trainer step: expected accumulate() for a share of several micro-batches, found "
        "forward(); use accumulate(), or leave TrainerOptions::micro_batch at 0"));
  }
  calibrate(loss_of_batch);
  if (samples_.batch.samples == 0) return {};
  try {
    return run_forward(0, loss_of_batch);
  } catch (const std::exception& error) {
    make_room_to_run_again(parts_.session, error);
  }
  parts_.buffers.put_back();
  return run_forward(0, loss_of_batch);
}

void StepAttempt::backward(const at::Tensor& loss, std::optional<double> weight) {
  has_backward_ = true;
  const double counted = weight.value_or(static_cast<double>(samples_.batch.samples));
  try {
    parts_.reducer.backward(scope_, loss, counted);
  } catch (const std::exception& error) {
    make_room_to_repeat(parts_.session, parts_.reducer, error);
  }
}

void StepAttempt::accumulate(const LossOf& loss_of, const WeightOf& weight_of) {
  has_backward_ = true;
  const StepShare& share = samples_.share;
  calibrate([&] { return loss_of(part_of_batch(share.part(0))); });
  try {
    for (std::uint64_t i = 0; i < share.own_micro_batches; ++i)
      take_micro_batch(i, loss_of, weight_of);
  } catch (const std::exception& error) {
    make_room_to_repeat(parts_.session, parts_.reducer, error);
  }
}

ReductionOutcome StepAttempt::update() {
  check_update();
  parts_.changes.set_learning_rate(scope_.number());
  const ReductionOutcome outcome = parts_.reducer.average(scope_);
  if (outcome.repeat) {
    parts_.buffers.put_back();
    parts_.changes.drop_gradients();
  } else {
    settle_buffers(outcome);
    parts_.changes.apply(scope_, outcome);
  }
  is_updated_ = true;
  return outcome;
}

void StepAttempt::calibrate(const std::function<at::Tensor()>& sample_loss) {
  Calibration& calibration = parts_.session.state().calibration();
  if (!calibration.is_wanted()) return;
  const auto sample = samples_.batch.samples > 0 ? sample_loss : std::function<at::Tensor()>();
  // Held from some later step on: optimizer state and the snapshots.
  const OptimizerPort& optimizer = parts_.changes.optimizer();
  const auto held_of = [&](std::int64_t whole) {
    if (parts_.sharding == nullptr) return whole;
    return parts_.sharding->saves().held_bytes_of(whole, optimizer.parameters());
  };
  const std::int64_t to_come = held_of(optimizer.bytes_to_come());
  const std::int64_t state_bytes =
      optimizer.state_bytes() + to_come + held_of(bytes_of(model_tensors(parts_.changes.model())));
  const std::int64_t bytes = to_come + parts_.rollbacks.bytes(state_bytes);
  const auto samples =
      parts_.options.micro_batch == 0 ? static_cast<std::uint64_t>(samples_.batch.samples) : 0;
  calibration.run({parts_.changes.model(), sample, bytes, micro_batches_of_a_step(), samples});
}

// This rank may have several micro-batches in a later step, if shares or the batch are steered.
MicroBatches StepAttempt::micro_batches_of_a_step() const {
  const Config& config = parts_.session.config();
  const bool is_steered =
      config.shares.mode == PolicyMode::on || config.accumulation.mode == PolicyMode::on;
  const bool has_several =
      samples_.share.own_micro_batches > 1 || (parts_.options.micro_batch > 0 && is_steered);
  return has_several ? MicroBatches::several : MicroBatches::one;
}

// `first` is the pass's first sample, from the start of this rank's share.
at::Tensor StepAttempt::run_forward(std::int64_t first,
                                    const std::function<at::Tensor()>& loss_of) {
  const StepShare& share = samples_.share;
  seed_default_generators(
      {parts_.session.config().run.seed, scope_.number(),
       share.step.cursor + static_cast<std::uint64_t>(share.slice.first + first)});
  const PhaseScope phase = scope_.phase(Phase::forward);
  return loss_of();
}

void StepAttempt::take_micro_batch(std::uint64_t i, const LossOf& loss_of,
                                   const WeightOf& weight_of) {
  const StepShare& share = samples_.share;
  const SampleSlice part = share.part(i);
  const Batch batch = part_of_batch(part);
  parts_.buffers.begin_micro_batch(share.first_micro_batch + i);
  const at::Tensor loss = run_forward(part.first, [&] { return loss_of(batch); });
  const bool is_last = i + 1 == share.own_micro_batches;
  const double weight = weight_of ? weight_of(batch) : static_cast<double>(part.count);
  parts_.reducer.backward(scope_, loss, weight, is_last ? MicroBatch::last : MicroBatch::more);
  parts_.buffers.end_micro_batch();
}

Batch StepAttempt::part_of_batch(const SampleSlice& part) const {
  const auto rows = [&part](const at::Tensor& all) {
    return all.defined() ? all.narrow(0, part.first, part.count) : all;
  };
  return {rows(samples_.batch.inputs), rows(samples_.batch.targets), part.count};
}

void StepAttempt::check_update() const {
  if (is_updated_) {
    throw Error(failed_precondition(
        "trainer step: expected one step.update() in a pass of the loop, found a second one"));
  }
  if (has_backward_ || samples_.batch.samples == 0) return;
  throw Error(failed_precondition(
      "trainer step: expected step.backward(loss) or step.accumulate() before step.update(), "
      "found neither; the trainer ignores a plain loss.backward(); use step.backward(loss, 0) for "
      "samples that must not count"));
}

// A skipped step must leave no value that is not finite. The forward pass may have written one into
// running statistics.
void StepAttempt::settle_buffers(const ReductionOutcome& outcome) {
  if (outcome.finite) return parts_.buffers.fold(scope_, samples_.share);
  parts_.buffers.put_back_nonfinite();
}

}  // namespace cox::detail
