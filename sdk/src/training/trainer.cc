#include "coxswain/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/reducer.h"
#include "coxswain/weight_average.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/model_changes.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/out_of_memory.h"
#include "sdk/src/training/step_queue.h"
#include "sdk/src/training/training_state.h"

namespace cox {

namespace detail {

// StepAttempt is one attempt at a step of a trainer: its samples, the passes over them, the average
// of the gradients, and the update.
//
//   take() -> forward() and backward(), or accumulate() -> update()
//
// A step that is to be repeated is attempted anew, with the same samples and random numbers. The
// session's step is open while an attempt exists.
class StepAttempt {
 public:
  // All of it must outlive the attempt.
  struct Parts {
    Session& session;
    const TrainerOptions& options;
    const TrainingSaves& saves;
    ModelUpdate& changes;
    StepBuffers& buffers;
    Reducer& reducer;
  };
  // Opens the session's step.
  explicit StepAttempt(const Parts& parts) : parts_(parts), scope_(parts.session.step()) {}

  // Takes the step's samples. Throws what the data set throws.
  void take(TrainingData& data) {
    const PhaseScope phase = scope_.phase(Phase::data);
    samples_ = data.take();
    scope_.samples(static_cast<std::uint64_t>(samples_.batch.samples));
    parts_.buffers.begin_step();
  }

  const Batch& batch() const { return samples_.batch; }
  std::uint64_t next_cursor() const { return samples_.share.step.next; }
  StepScope& scope() { return scope_; }

  // As TrainerStep's functions of the same names.
  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch) {
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

  void backward(const at::Tensor& loss, std::optional<double> weight) {
    has_backward_ = true;
    const double counted = weight.value_or(static_cast<double>(samples_.batch.samples));
    try {
      parts_.reducer.backward(scope_, loss, counted);
    } catch (const std::exception& error) {
      make_room_to_repeat(parts_.session, parts_.reducer, error);
    }
  }

  using LossOf = std::function<at::Tensor(const Batch&)>;
  using WeightOf = std::function<double(const Batch&)>;

  void accumulate(const LossOf& loss_of, const WeightOf& weight_of) {
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

  ReductionOutcome update() {
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

  bool is_updated() const { return is_updated_; }

 private:
  void calibrate(const std::function<at::Tensor()>& sample_loss) {
    Calibration& calibration = parts_.session.state().calibration();
    if (!calibration.is_wanted()) return;
    const auto sample = samples_.batch.samples > 0 ? sample_loss : std::function<at::Tensor()>();
    // Resident from some later step on: optimizer state, and the snapshots.
    const std::int64_t bytes =
        parts_.changes.optimizer().bytes_to_come() + parts_.saves.snapshot_bytes();
    const auto samples =
        parts_.options.micro_batch == 0 ? static_cast<std::uint64_t>(samples_.batch.samples) : 0;
    calibration.run({parts_.changes.model(), sample, bytes, micro_batches_of_a_step(), samples});
  }

  // Where shares or the batch are steered, this rank may have several in a later step.
  MicroBatches micro_batches_of_a_step() const {
    const Config& config = parts_.session.config();
    const bool is_steered =
        config.shares.mode == PolicyMode::on || config.accumulation.mode == PolicyMode::on;
    const bool has_several =
        samples_.share.own_micro_batches > 1 || (parts_.options.micro_batch > 0 && is_steered);
    return has_several ? MicroBatches::several : MicroBatches::one;
  }

  // `first`: of the pass's samples, from the start of this rank's share.
  at::Tensor run_forward(std::int64_t first, const std::function<at::Tensor()>& loss_of) {
    const StepShare& share = samples_.share;
    seed_default_generators(
        {parts_.session.config().run.seed, scope_.number(),
         share.step.cursor + static_cast<std::uint64_t>(share.slice.first + first)});
    const PhaseScope phase = scope_.phase(Phase::forward);
    return loss_of();
  }

  void take_micro_batch(std::uint64_t i, const LossOf& loss_of, const WeightOf& weight_of) {
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

  Batch part_of_batch(const SampleSlice& part) const {
    const auto rows = [&part](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, part.first, part.count) : all;
    };
    return {rows(samples_.batch.inputs), rows(samples_.batch.targets), part.count};
  }

  void check_update() const {
    if (is_updated_) {
      throw Error(failed_precondition(
          "trainer step: expected one step.update() in a pass of the loop, found a second one"));
    }
    if (has_backward_ || samples_.batch.samples == 0) return;
    throw Error(failed_precondition(
        "trainer step: expected step.backward(loss) or step.accumulate() before step.update(), "
        "found neither; a plain loss.backward() is not seen by the trainer, and "
        "step.backward(loss, 0) is for samples that are not to count"));
  }

  // A step that is skipped leaves nothing behind that is not finite; the forward pass may have
  // written it into running statistics.
  void settle_buffers(const ReductionOutcome& outcome) {
    if (outcome.finite) return parts_.buffers.fold(scope_, samples_.share);
    parts_.buffers.put_back_nonfinite();
  }

  const Parts parts_;
  StepScope scope_;
  StepQueue::Step samples_;
  bool has_backward_ = false;  // it was given, be it for no samples
  bool is_updated_ = false;
};

}  // namespace detail

using detail::SessionState;
using OnFailure = detail::TrainingSaves::OnFailure;

namespace {

void check_is_first(SessionState& state) {
  if (!state.control().is_started()) return;
  throw Error(
      failed_precondition("Trainer: expected a session without steps, Reducer or other Trainer, "
                          "found one that has begun; a session has one Trainer, made right after "
                          "Session::start (for several models in one loop: ManualParallel)"),
      Error::Scope::all_ranks);
}

void check_options(SessionState& state, const TrainerOptions& options) {
  detail::check_equal(
      state.job(), detail::fingerprint_of(options),
      "the same TrainerOptions (global_batch, micro_batch, prefetch, steps and clip_norm)",
      "give every rank the same");
  detail::require(detail::validate(options, state.job().world_size(), state.job().config()),
                  Error::Scope::all_ranks);
}

// Parameters of equal shapes in another order would be averaged with each other.
void check_equal_names(SessionState& state, const torch::nn::Module& model) {
  detail::check_equal(state.job(), detail::fingerprint(detail::model_tensors(model)),
                      "the same model (names, shapes, types and order of parameters)",
                      "build the same model on every rank");
}

}  // namespace

// The loop of a Trainer: which step comes next, what follows from one that is over, and the end.
struct Trainer::Impl {
  Impl(Session& session_in, torch::nn::Module& model,
       std::unique_ptr<detail::OptimizerPort> optimizer, TrainerOptions options_in,
       MasterWeights* masters = nullptr)
      : session(session_in),
        options(std::move(options_in)),
        data(state(), options, position),
        changes(state(), model, std::move(optimizer), masters, options),
        step_handle(nullptr) {
    const auto named = state().job().world().name_calls("the start of a Trainer");
    check_is_first(state());
    check_options(state(), options);
    check_equal_names(state(), model);
    changes.check_optimizer();
    state().loop().declare_reducing("the start of a Trainer");
    state().attach(model);
    saves.emplace(detail::TrainingSaves::Parts{session, model, changes.optimizer(), position});
    detail::TrainingSaves::Resumed saved;
    if (is_resumed()) saved = saves->resume();
    position.seed = state().job().config().run.seed;
    reducer.emplace(session, model.parameters(), model.buffers());
    if (!saved.reducer.empty()) state().job().agree(reducer->load_state(saved.reducer));
    detail::load_rows(state(), saved.rows);
    if (masters != nullptr) adopt(*masters);
    buffers.emplace(state(), model);
    saves->start_after(session.plan().rollback.ticket);
  }

  // A loop that was left by `break` has its open step in here.
  ~Impl() {
    if (!attempt || !saves->is_behind() || std::uncaught_exceptions() > 0) return;
    state().job().log().warning(
        "the training loop was left in the middle of a step, so what came after the last save is "
        "not saved; end the loop by trainer.stop()");
  }

  // The reducer gave the model rank 0's weights, or a save its own.
  void adopt(MasterWeights& masters) {
    masters.take_weights();
    saves->add_equal_part("masters", masters);
  }

  SessionState& state() const { return session.state(); }
  bool is_resumed() const { return state().job().config().checkpoint.resume; }
  bool is_stopped() const { return position.step >= steps_at_stop; }
  bool wants_another_step() const { return !is_stopped() && position.step < options.steps; }

  // Begins the next step, if there is one.
  void begin_step() {
    if (!wants_another_step()) return;
    state().step().set_next(StepId(position.step));
    attempt.emplace(
        detail::StepAttempt::Parts{session, options, *saves, changes, *buffers, *reducer});
    attempt->take(data);
  }

  void update() {
    const ReductionOutcome outcome = attempt->update();
    if (outcome.stop) steps_at_stop = 0;  // asked from outside
    if (outcome.repeat) {
      ++repeated;
      return;
    }
    if (!outcome.finite) ++position.skipped;
    position.scaler = session.capabilities().loss_scale.state();
    position.cursor = attempt->next_cursor();
    ++position.step;
    last_loss = outcome.loss;
    if (position.ends_epoch())
      state().recorder().activity().do_aside(Activity::epoch, detail::Clock::now());
  }

  void end_step() {
    if (!attempt->is_updated()) {
      throw Error(
          failed_precondition("trainer step: expected step.update() before the next step, found "
                              "none; call it once in every pass of the loop, on every rank"));
    }
    const RoundId round = state().step().round();
    saves->roll_back_if_ordered(*reducer);
    attempt.reset();
    // The end of the step puts away what it leaves behind (its row, magnitudes).
    saves->keep_snapshot(round, *reducer);
    save_if_due();
  }

  void save_if_due() {
    const std::uint32_t every = state().job().config().checkpoint.every_steps;
    const bool is_last = !wants_another_step();
    const bool is_asked = std::exchange(save_is_asked, false);
    if (!saves->is_behind()) return;  // a repeated attempt, or the end
    if (is_last || is_asked) {
      saves->write(*reducer, OnFailure::raise);
    } else if (every > 0 && position.step > 0 && position.step % every == 0) {
      saves->write(*reducer, OnFailure::report);
    }
  }

  // A run can go on from the end of a step only.
  void save_now() {
    if (attempt && is_looping && !attempt->is_updated()) {
      throw Error(failed_precondition("save: expected it after step.update() or outside of the "
                                      "loop, found a step that has begun and was not updated yet"),
                  Error::Scope::all_ranks);
    }
    saves->check_folder();
    if (attempt && is_looping) {
      save_is_asked = true;
      return;
    }
    if (attempt && attempt->is_updated()) end_step();  // of a loop that was left by `break`
    saves->write(*reducer, OnFailure::raise);
  }

  // By its end, `break` or an exception: nobody reads the data set from now on. After a `break` a
  // save that was asked for is still to be written.
  void leave_loop() noexcept try {
    is_looping = false;
    data.forget();
    const bool is_left_by_break =
        attempt && attempt->is_updated() && std::uncaught_exceptions() == 0;
    if (is_left_by_break && save_is_asked) end_step();
  } catch (const std::exception& error) {
    state().job().log().error(error.what());
  }

  Session& session;
  const TrainerOptions options;
  detail::TrainingPosition position;
  detail::TrainingData data;
  detail::ModelUpdate changes;
  std::optional<detail::TrainingSaves> saves;
  std::optional<Reducer> reducer;
  std::optional<detail::StepBuffers> buffers;
  double last_loss = 0;                 // of the last completed step
  std::uint64_t repeated = 0;           // attempts at a step
  std::uint64_t steps_at_stop = ~0ull;  // 0 = asked from outside
  std::optional<detail::StepAttempt> attempt;
  bool is_looping = false;     // within the range that steps() gave
  bool save_is_asked = false;  // by save(), for the end of the step
  TrainerStep step_handle;
};

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
  impl_->saves->warn_of_unclaimed();
  impl_->data.open(dataset, impl_->changes.parameters().front().device());
  return Steps(impl_.get());
}

TrainingProgress Trainer::progress() const {
  const detail::TrainingPosition& position = impl_->position;
  return {.step = position.step,
          .consumed = position.cursor,
          .skipped = position.skipped,
          .rollbacks = position.rollbacks,
          .repeated = impl_->repeated,
          .loss = impl_->last_loss,
          .resumed = impl_->is_resumed(),
          .stopped = impl_->is_stopped()};
}

void Trainer::save() {
  impl_->save_now();
}

void Trainer::stop() {
  auto& open = impl_->attempt;
  const std::uint64_t last = open ? open->scope().number() + 1 : impl_->position.step;
  impl_->steps_at_stop = std::min(impl_->steps_at_stop, last);
}

Trainer::Steps::~Steps() {
  impl_->leave_loop();
}

Trainer::Steps::Iterator Trainer::Steps::begin() {
  if (impl_->attempt) impl_->end_step();  // of a loop that was left by `break`
  impl_->is_looping = true;
  impl_->begin_step();
  return Iterator(impl_);
}

TrainerStep& Trainer::Steps::Iterator::operator*() const {
  return impl_->step_handle;
}

Trainer::Steps::Iterator& Trainer::Steps::Iterator::operator++() {
  impl_->end_step();
  impl_->begin_step();
  return *this;
}

bool Trainer::Steps::Iterator::operator!=(End) const {
  return impl_->attempt.has_value();
}

std::uint64_t TrainerStep::number() const {
  return trainer_->impl_->attempt->scope().number();
}
const Batch& TrainerStep::batch() const {
  return trainer_->impl_->attempt->batch();
}

at::Tensor TrainerStep::forward(const std::function<at::Tensor()>& loss_of_batch) {
  return trainer_->impl_->attempt->forward(loss_of_batch);
}

void TrainerStep::backward(const at::Tensor& loss, std::optional<double> weight) {
  trainer_->impl_->attempt->backward(loss, weight);
}

void TrainerStep::accumulate(const std::function<at::Tensor(const Batch&)>& loss_of,
                             const std::function<double(const Batch&)>& weight_of) {
  trainer_->impl_->attempt->accumulate(loss_of, weight_of);
}

void TrainerStep::update() {
  trainer_->impl_->update();
}

PhaseScope TrainerStep::phase(Phase phase) {
  return trainer_->impl_->attempt->scope().phase(phase);
}

void TrainerStep::tokens(std::uint64_t count) {
  trainer_->impl_->attempt->scope().tokens(count);
}

void TrainerStep::log(std::string_view name, double value) {
  trainer_->impl_->attempt->scope().log(name, value);
}

}  // namespace cox
