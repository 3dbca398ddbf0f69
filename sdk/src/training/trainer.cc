#include "coxswain/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coxswain/clip.h"
#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/reducer.h"
#include "coxswain/sample_plan.h"
#include "coxswain/weight_average.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/batch_statistics.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/equal_ranks.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/out_of_memory.h"
#include "sdk/src/training/step_queue.h"
#include "sdk/src/training/training_state.h"

namespace cox {

using OnFailure = detail::TrainingSaves::OnFailure;

struct Trainer::Impl {
  Impl(Session& session, torch::nn::Module& model, std::unique_ptr<detail::OptimizerPort> optimizer,
       TrainerOptions options, MasterWeights* masters = nullptr);

  // A loop that was left by `break` has its open step in here.
  ~Impl() {
    const bool is_unsaved = scope && saves && saves->has_folder() && !saves->is_saved();
    if (!is_unsaved || std::uncaught_exceptions() > 0) return;
    state.job().log().warning(
        "the training loop was left in the middle of a step, so what came after the last save is "
        "not saved; end the loop by trainer.stop()");
  }

  // Before the first step.
  void check_is_first() const {
    if (!state.is_started()) return;
    throw Error(
        failed_precondition("Trainer: expected a session without steps, Reducer or other Trainer, "
                            "found one that has begun; a session has one Trainer, made right after "
                            "Session::start (for several models in one loop: ManualParallel)"),
        Error::Scope::all_ranks);
  }

  void check_options() const {
    detail::check_equal(
        state.job(), detail::fingerprint_of(options),
        "the same TrainerOptions (global_batch, micro_batch, prefetch, steps and clip_norm)",
        "give every rank the same");
    detail::require(detail::validate(options, session.world_size(), state.job().config()),
                    Error::Scope::all_ranks);
  }

  // Parameters of equal shapes in another order would be averaged with each other.
  void check_equal_names() const {
    detail::check_equal(state.job(), detail::fingerprint(detail::model_tensors(model)),
                        "the same model (names, shapes, types and order of parameters)",
                        "build the same model on every rank");
  }

  // An optimizer of a model that was cloned since would update nothing.
  void check_optimizer() const {
    const auto is_updated = [this](const at::Tensor& held) {
      return std::ranges::any_of(updated_tensors,
                                 [&](const at::Tensor& p) { return p.is_same(held); });
    };
    const bool holds_some = std::ranges::any_of(optimizer->parameters(), is_updated);
    const std::string expected = masters == nullptr
                                     ? "the model's parameters, or of some of them, found one that "
                                       "holds none; make it from model.parameters(), or give the "
                                       "Trainer the MasterWeights that it is of"
                                     : "the masters' tensors, found one that holds none; make it "
                                       "from masters.tensors()";
    state.job().agree(holds_some
                          ? ok_status()
                          : invalid_argument("Trainer: expected an optimizer of " + expected));
    detail::check_equal(state.job(), optimizer->options_hash(), "the same options of the optimizer",
                        "give every rank the same learning rate, betas and the like");
  }

  void take_dataset(const Dataset& dataset) {
    saves->warn_of_unclaimed();
    take_size(static_cast<std::uint64_t>(dataset.size()));
    check_data(dataset);
  }

  void take_size(std::uint64_t size) {
    detail::check_equal(state.job(), size, "a data set of the same size",
                        "give every rank the same data");
    const bool is_first_after_resume = is_resumed && !queue && position.samples > 0;
    if (is_first_after_resume && position.samples != size) {
      throw Error(
          failed_precondition("resume: expected the data set of the save, of " +
                              std::to_string(position.samples) + " samples, found one of " +
                              std::to_string(size) + "; a place in one means nothing in another"),
          Error::Scope::all_ranks);
    }
    position.samples = size;
  }

  // Another text of the same size would be trained on as if it were the same.
  void check_data(const Dataset& dataset) {
    const std::uint64_t hash = detail::hash_of_samples(dataset);
    detail::check_equal(state.job(), hash, "a data set with the same samples",
                        "give every rank the same data");
    const bool is_first_after_resume = is_resumed && !queue && position.data_hash != 0;
    if (is_first_after_resume && hash != 0 && hash != position.data_hash) {
      throw Error(
          failed_precondition("resume: expected the data set of the save, found one of the same "
                              "size with other samples; resume with the data that the run was "
                              "started with"),
          Error::Scope::all_ranks);
    }
    position.data_hash = hash;
  }

  // What a step may have to put back and nobody else does.
  bool keeps(const at::Tensor& buffer) const {
    if (!statistics) return true;
    const std::vector<at::Tensor> apart = statistics->buffers();
    return std::ranges::none_of(apart,
                                [&](const at::Tensor& other) { return buffer.is_same(other); });
  }

  // The parts of one step, in the order in which they run.
  bool wants_another_step() const { return !is_stopped() && position.step < options.steps; }
  bool is_stopped() const { return stopping || position.step >= steps_at_stop; }

  void stop() { steps_at_stop = scope ? scope->number() + 1 : position.step; }

  void begin_step() {
    state.step().set_next(StepId(position.step));
    scope.emplace(session.step());
    has_backward = updated = false;
    const PhaseScope data = scope->phase(Phase::data);
    step = queue->take(shares.request(position.cursor));
    scope->samples(static_cast<std::uint64_t>(step.batch.samples));
    if (statistics) statistics->begin_step();
    buffers->begin_step();
  }

  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch) {
    if (options.micro_batch > 0) {
      throw Error(failed_precondition(
          "trainer step: expected accumulate() for a share of several micro-batches, found "
          "forward(); use accumulate(), or leave TrainerOptions::micro_batch at 0"));
    }
    calibrate(loss_of_batch);
    if (step.batch.samples == 0) return {};
    const auto first = step.share.step.cursor + static_cast<std::uint64_t>(step.share.slice.first);
    const auto run = [&] {
      detail::seed_default_generators({state.job().config().run.seed, position.step, first});
      const PhaseScope phase = scope->phase(Phase::forward);
      return loss_of_batch();
    };
    return detail::run_within_memory(session, run, [this] { put_back_buffers(); });
  }

  void put_back_buffers() {
    if (statistics) statistics->put_back();
    buffers->put_back();
  }

  void backward(const at::Tensor& loss, std::optional<double> weight) {
    has_backward = true;
    const double counted = weight.value_or(static_cast<double>(step.batch.samples));
    detail::run_or_repeat_step(session, *reducer,
                               [&] { reducer->backward(*scope, loss, counted); });
  }

  using LossOf = std::function<at::Tensor(const Batch&)>;
  using WeightOf = std::function<double(const Batch&)>;

  void accumulate(const LossOf& loss_of, const WeightOf& weight_of) {
    has_backward = true;
    calibrate([&] { return loss_of(part_of_batch(step.share.part(0))); });
    detail::run_or_repeat_step(session, *reducer, [&] {
      for (std::uint64_t i = 0; i < step.share.own_micro_batches; ++i)
        take_micro_batch(i, loss_of, weight_of);
    });
  }

  void update() {
    check_update();
    if (options.learning_rate) optimizer->set_learning_rate(options.learning_rate(position.step));
    const ReductionOutcome outcome = reducer->average(*scope);
    stopping = stopping || outcome.stop;
    if (outcome.repeat) return repeat();
    settle_buffers(outcome);
    {
      const PhaseScope phase = scope->phase(Phase::optimizer);
      apply(outcome);
    }
    position.scaler = formats.scaler();
    position.cursor = step.share.step.next;
    ++position.step;
    updated = true;
    last_loss = outcome.loss;
    if (position.ends_epoch())
      state.recorder().activity().do_aside(Activity::epoch, detail::Clock::now());
  }

  void end_step() {
    if (!updated) {
      throw Error(
          failed_precondition("trainer step: expected step.update() before the next step, found "
                              "none; call it once in every pass of the loop, on every rank"));
    }
    const RoundId round = state.step().round();
    saves->roll_back_if_ordered(*reducer);
    scope.reset();
    // The end of the scope puts away what the step leaves behind (its row, magnitudes).
    saves->keep_snapshot(round, *reducer);
    save_if_due();
  }

  // Parts of accumulate() and begin_step().
  void take_micro_batch(std::uint64_t i, const LossOf& loss_of, const WeightOf& weight_of) {
    const SampleSlice part = step.share.part(i);
    const Batch samples = part_of_batch(part);
    const auto first = static_cast<std::uint64_t>(step.share.slice.first + part.first);
    detail::seed_default_generators(
        {state.job().config().run.seed, position.step, step.share.step.cursor + first});
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

  void calibrate(const std::function<at::Tensor()>& sample_loss) {
    if (!state.wants_calibration()) return;
    const auto sample = step.batch.samples > 0 ? sample_loss : std::function<at::Tensor()>();
    // Resident from some later step on: optimizer state, and the snapshots.
    const std::int64_t bytes = optimizer->bytes_to_come() + saves->snapshot_bytes();
    const auto samples =
        options.micro_batch == 0 ? static_cast<std::uint64_t>(step.batch.samples) : 0;
    state.calibration().run({model, sample, bytes, micro_batches_of_a_step(), samples});
  }

  // Where shares or the batch are steered, this rank may have several in a later step.
  detail::MicroBatches micro_batches_of_a_step() const {
    const bool is_steered = state.job().config().shares.mode == PolicyMode::on ||
                            state.job().config().accumulation.mode == PolicyMode::on;
    const bool has_several =
        step.share.own_micro_batches > 1 || (options.micro_batch > 0 && is_steered);
    return has_several ? detail::MicroBatches::several : detail::MicroBatches::one;
  }

  Batch part_of_batch(const SampleSlice& part) const {
    const auto rows = [&part](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, part.first, part.count) : all;
    };
    return {rows(step.batch.inputs), rows(step.batch.targets), part.count};
  }

  // The reducer gave the model rank 0's weights, or a save its own.
  void adopt_masters() {
    masters->take_weights();
    saves->add_equal_part("masters", *masters);
  }

  // Parts of update() and end_step().
  void check_update() const {
    if (updated) {
      throw Error(failed_precondition(
          "trainer step: expected one step.update() in a pass of the loop, found a second one"));
    }
    if (has_backward || step.batch.samples == 0) return;
    throw Error(failed_precondition(
        "trainer step: expected step.backward(loss) or step.accumulate() before step.update(), "
        "found neither; a plain loss.backward() is not seen by the trainer, and "
        "step.backward(loss, 0) is for samples that are not to count"));
  }

  // A step that is skipped leaves nothing behind that is not finite; the forward pass may have
  // written it into running statistics.
  void settle_buffers(const ReductionOutcome& outcome) {
    if (outcome.finite) return fold_statistics();
    if (statistics) statistics->put_back();
    buffers->put_back_nonfinite();
  }

  void fold_statistics() {
    if (!statistics) return;
    const PhaseScope phase = scope->phase(Phase::communication);
    const Status folded = statistics->fold(
        state.job().data(), state.job().world().wait_policy(),
        [this] { state.control().plane().pump(); }, step.share.micro_batches,
        step.share.most_on_a_rank);
    if (!folded.ok()) throw Error(folded.with_context("running statistics"));
  }

  // The same samples again, with the same random numbers, in a step of the same number.
  void repeat() {
    put_back_buffers();
    drop_gradients();
    ++repeated;
    updated = true;
  }

  void apply(const ReductionOutcome& outcome) {
    if (options.learning_rate) scope->log("lr", optimizer->learning_rate(0));
    if (outcome.finite) {
      if (masters != nullptr) masters->take_gradients();
      if (options.clip_norm > 0) {
        clip_by_global_norm(updated_tensors, options.clip_norm,
                            {.known_norm = outcome.gradient_norm});
      }
      optimizer->step();
      if (masters != nullptr) masters->give_weights();
      if (!std::exchange(optimizer_is_shown, true)) {
        state.control().telemetry().show_held({.optimizer = optimizer->state_bytes()});
        state.control().telemetry().show_last_step(options.steps);
      }
    } else {
      ++position.skipped;
    }
    drop_gradients();
  }

  // The optimizer may hold only a part of the model.
  void drop_gradients() {
    optimizer->zero_grad();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
  }

  TrainingProgress progress() const {
    return {.step = position.step,
            .consumed = position.cursor,
            .skipped = position.skipped,
            .rollbacks = position.rollbacks,
            .repeated = repeated,
            .loss = last_loss,
            .resumed = is_resumed,
            .stopped = is_stopped()};
  }

  void save_if_due() {
    const std::uint32_t every = state.job().config().checkpoint.every_steps;
    const bool is_last = !wants_another_step();
    const bool is_asked = std::exchange(save_is_asked, false);
    if (!saves->has_folder()) return;
    if (saves->is_saved()) return;  // a repeated attempt, or the end
    if (is_last || is_asked) {
      saves->write(*reducer, OnFailure::raise);
    } else if (every > 0 && position.step > 0 && position.step % every == 0) {
      saves->write(*reducer, OnFailure::report);
    }
  }

  // A run can go on from the end of a step only.
  void save_now() {
    if (scope && is_looping && !updated) {
      throw Error(failed_precondition("save: expected it after step.update() or outside of the "
                                      "loop, found a step that has begun and was not updated yet"),
                  Error::Scope::all_ranks);
    }
    saves->check_folder();
    if (scope && is_looping) {
      save_is_asked = true;
      return;
    }
    if (scope && updated) end_step();  // of a loop that was left by `break`
    saves->write(*reducer, OnFailure::raise);
  }

  // By its end, `break` or an exception: nobody reads the data set from now on. After a `break` a
  // save that was asked for is still to be written.
  void leave_loop() noexcept try {
    is_looping = false;
    if (queue) queue->forget();
    const bool is_left_by_break = scope && updated && std::uncaught_exceptions() == 0;
    if (is_left_by_break && save_is_asked) end_step();
  } catch (const std::exception& error) {
    state.job().log().error(error.what());
  }

  Session& session;
  detail::SessionState& state;
  detail::FormatActuator& formats;
  torch::nn::Module& model;
  const std::vector<at::Tensor> parameters;       // of the model, each once
  MasterWeights* const masters;                   // null: the optimizer updates the parameters
  const std::vector<at::Tensor> updated_tensors;  // by the optimizer
  std::unique_ptr<detail::OptimizerPort> optimizer;
  TrainerOptions options;
  detail::ShareActuator shares;
  detail::AddedActuator<detail::ShareActuator> added_shares;
  detail::RateCheck rates;
  detail::AddedActuator<detail::RateCheck> added_rates;
  detail::TrainingPosition position;
  std::optional<detail::TrainingSaves> saves;
  std::optional<detail::AddedActuator<detail::TrainingSaves>> added_saves;
  std::optional<detail::StepQueue> queue;
  std::optional<Reducer> reducer;
  std::optional<detail::BatchStatistics> statistics;  // reproducible mode
  std::optional<detail::StepBuffers> buffers;         // those that keeps() says
  double last_loss = 0;                               // of the last completed step
  std::uint64_t repeated = 0;                         // attempts at a step
  bool is_resumed = false;
  bool stopping = false;                // asked from outside
  std::uint64_t steps_at_stop = ~0ull;  // asked by stop()

  // The open step.
  std::optional<StepScope> scope;
  detail::StepQueue::Step step;
  bool has_backward = false;  // it was given, be it for no samples
  bool updated = false;
  bool is_looping = false;          // within the range that steps() gave
  bool save_is_asked = false;       // by save(), for the end of the step
  bool optimizer_is_shown = false;  // its size, which it has after its first step
  TrainerStep step_handle;
};

Trainer::Impl::Impl(Session& session_in, torch::nn::Module& model_in,
                    std::unique_ptr<detail::OptimizerPort> optimizer_in, TrainerOptions options_in,
                    MasterWeights* masters_in)
    : session(session_in),
      state(session_in.state()),
      formats(session_in.capabilities().formats),
      model(model_in),
      parameters(detail::each_once(model_in.parameters())),
      masters(masters_in),
      updated_tensors(masters == nullptr ? parameters : masters->tensors()),
      optimizer(std::move(optimizer_in)),
      options(std::move(options_in)),
      shares({options.global_batch, options.micro_batch, options.prefetch, state.job().rank(),
              state.job().world_size()}),
      added_shares(state.actuators(), shares),
      rates(*optimizer),
      added_rates(state.actuators(), rates),
      step_handle(nullptr) {
  check_is_first();
  check_options();
  check_equal_names();
  check_optimizer();
  state.declare_reducing();
  state.attach(model);
  saves.emplace(detail::TrainingSaves::Parts{session, model, *optimizer, position});
  added_saves.emplace(state.actuators(), *saves);
  detail::TrainingSaves::Resumed saved;
  if (state.job().config().checkpoint.resume) {
    saved = saves->resume();
    is_resumed = true;
  }
  position.seed = state.job().config().run.seed;
  reducer.emplace(session, model.parameters(), model.buffers());
  if (!saved.reducer.empty()) state.job().agree(reducer->load_state(saved.reducer));
  detail::load_rows(state, saved.rows);
  if (state.job().config().reduction.reproducible) statistics.emplace(model);
  if (masters != nullptr) adopt_masters();
  buffers.emplace(model.buffers(), [this](const at::Tensor& buffer) { return keeps(buffer); });
  saves->start_after(session.plan().rollback.ticket);
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->step_handle = TrainerStep(this);
}

Trainer::Trainer(Session& session, torch::nn::Module& model, AdamW& optimizer,
                 TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                     std::move(options))) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                 TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                     std::move(options))) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
                 AdamW& optimizer, TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                     std::move(options), &masters)) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
                 torch::optim::Optimizer& optimizer, TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                     std::move(options), &masters)) {}

Trainer::~Trainer() = default;

void Trainer::add_state(std::string_view name, WeightAverage& average) {
  impl_->saves->add_equal_part(name, average);
}

void Trainer::add_state(std::string_view name, TrainingPart part) {
  impl_->saves->add_part(name, std::move(part));
}

Trainer::Steps Trainer::steps(const Dataset& dataset) {
  impl_->take_dataset(dataset);
  SamplePlanOptions plan;
  plan.size = dataset.size();
  plan.global_batch = impl_->options.global_batch;
  plan.seed = impl_->state.job().config().run.seed;
  impl_->queue.emplace(dataset, detail::require(SamplePlan::create(plan), Error::Scope::all_ranks),
                       impl_->options.prefetch, impl_->parameters.front().device());
  const Status prefetch = impl_->queue->prefetch_status();
  if (!prefetch.ok())
    impl_->state.job().log().warning("steps get their batches themselves: " + prefetch.message());
  return Steps(impl_.get());
}

TrainingProgress Trainer::progress() const {
  return impl_->progress();
}

void Trainer::save() {
  impl_->save_now();
}

void Trainer::stop() {
  impl_->stop();
}

Trainer::Steps::~Steps() {
  impl_->leave_loop();
}

Trainer::Steps::Iterator Trainer::Steps::begin() {
  if (impl_->scope) impl_->end_step();  // of a loop that was left by `break`
  impl_->is_looping = true;
  if (impl_->wants_another_step()) impl_->begin_step();
  return Iterator(impl_);
}

TrainerStep& Trainer::Steps::Iterator::operator*() const {
  return impl_->step_handle;
}

Trainer::Steps::Iterator& Trainer::Steps::Iterator::operator++() {
  impl_->end_step();
  if (impl_->wants_another_step()) impl_->begin_step();
  return *this;
}

bool Trainer::Steps::Iterator::operator!=(End) const {
  return impl_->scope.has_value();
}

std::uint64_t TrainerStep::number() const {
  return trainer_->impl_->scope->number();
}
const Batch& TrainerStep::batch() const {
  return trainer_->impl_->step.batch;
}

at::Tensor TrainerStep::forward(const std::function<at::Tensor()>& loss_of_batch) {
  return trainer_->impl_->forward(loss_of_batch);
}

void TrainerStep::backward(const at::Tensor& loss, std::optional<double> weight) {
  trainer_->impl_->backward(loss, weight);
}

void TrainerStep::accumulate(const std::function<at::Tensor(const Batch&)>& loss_of,
                             const std::function<double(const Batch&)>& weight_of) {
  trainer_->impl_->accumulate(loss_of, weight_of);
}

void TrainerStep::update() {
  trainer_->impl_->update();
}

PhaseScope TrainerStep::phase(Phase phase) {
  return trainer_->impl_->scope->phase(phase);
}

void TrainerStep::tokens(std::uint64_t count) {
  trainer_->impl_->scope->tokens(count);
}

void TrainerStep::log(std::string_view name, double value) {
  trainer_->impl_->scope->log(name, value);
}

}  // namespace cox
