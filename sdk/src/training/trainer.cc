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
#include <vector>

#include "coordinator/io/limits.h"
#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/reducer.h"
#include "coxswain/weight_average.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/equal_ranks.h"
#include "sdk/src/training/model_changes.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/rollbacks.h"
#include "sdk/src/training/step_attempt.h"
#include "sdk/src/training/step_queue.h"
#include "sdk/src/training/training_saves.h"
#include "sdk/src/training/training_state.h"

namespace cox {

using detail::SessionState;
using OnFailure = detail::TrainingSaves::OnFailure;

// TrainerState is the state that a Trainer saves. The reducer is created after a resume, and then
// loads its part of the save.
class TrainerState final : public detail::TrainedState {
 public:
  TrainerState(torch::nn::Module& model, detail::OptimizerPort& optimizer)
      : model_(model), optimizer_(optimizer) {}
  void show(const Reducer& reducer) { reducer_ = &reducer; }
  void show(detail::Sharding& sharding) { sharding_ = &sharding; }
  detail::Checkpoint capture() const override {
    detail::Checkpoint all = detail::capture(model_, optimizer_);
    all.reducer = reducer_->state();
    if (sharding_ == nullptr) return all;
    for (NamedTensor& each : all.optimizer)
      each.tensor = sharding_->saves().form_of_whole(each.tensor);
    return all;
  }
  void complete(std::vector<NamedTensor>& optimizer,
                const std::function<bool(std::size_t place)>& keeps) const override {
    if (sharding_ == nullptr) return;
    sharding_->saves().complete(optimizer_.state(), optimizer, keeps);
  }
  bool is_shard(const at::Tensor& tensor) const override {
    return sharding_ != nullptr && sharding_->saves().is_shard(tensor);
  }
  Status restore(const detail::Checkpoint& state, detail::Handover handover) override {
    return detail::restore(state, model_, optimizer_, handover);
  }
  std::function<Status()> remember() override {
    if (sharding_ == nullptr) return TrainedState::remember();
    const detail::SavedShards shards = sharding_->saves();
    return [this, model = shards.copy_held(detail::model_tensors(model_)),
            states = shards.copy_held(optimizer_.state())] { return put_back(model, states); };
  }

 private:
  using Held = std::vector<detail::HeldTensor>;
  // The optimizer takes whole states, as after a resume, and they are divided again.
  Status put_back(const Held& model, const Held& states) {
    const detail::SavedShards shards = sharding_->saves();
    const std::vector<NamedTensor> targets = detail::model_tensors(model_);
    shards.put_back(targets, model);
    const auto whole = shards.spread(states);
    const Status loaded = optimizer_.load_state(whole, detail::Handover::taken);
    if (loaded.ok()) shards.divide(optimizer_.state(), targets);
    return loaded;
  }

  torch::nn::Module& model_;
  detail::OptimizerPort& optimizer_;
  const Reducer* reducer_ = nullptr;
  detail::Sharding* sharding_ = nullptr;  // null if every rank holds all state
};

namespace {

void check_is_first(SessionState& state) {
  if (!state.control().is_started()) return;
  throw Error(
      failed_precondition("Trainer: expected a session without steps, Reducer or other Trainer, "
                          "found a session that has begun; make the one Trainer of a session right "
                          "after Session::start (for several models in one loop: ManualParallel)"),
      Error::Scope::all_ranks);
}

void check_options(SessionState& state, const TrainerOptions& options) {
  detail::check_equal(
      state.job(), detail::fingerprint_of(options),
      "the same TrainerOptions (global_batch, micro_batch, prefetch, steps and clip_norm)",
      "give every rank the same options");
  detail::require(detail::validate(options, state.job().world_size(), state.job().config()),
                  Error::Scope::all_ranks);
}

// Refuses optimizers that a Trainer with divided state does not support.
void check_divisible(SessionState& state, const detail::OptimizerPort& optimizer) {
  if (!detail::Sharding::is_wanted(state) || !detail::is_by_position(optimizer.state())) return;
  throw Error(failed_precondition("shard.mode=state: expected an optimizer of LibTorch's or "
                                  "cox::AdamW, found one whose state has no names; "
                                  "train with one of these, or set shard.mode=off"),
              Error::Scope::all_ranks);
}

}  // namespace

// Trainer::Impl is the loop of a Trainer: begins steps, acts on the outcome of a step, and ends.
struct Trainer::Impl {
  Impl(Session& session_in, torch::nn::Module& model,
       std::unique_ptr<detail::OptimizerPort> optimizer, TrainerOptions options_in,
       MasterWeights* masters = nullptr)
      : session(session_in),
        options(std::move(options_in)),
        data(state(), options, position),
        changes(state(), model, std::move(optimizer), masters, options),
        trained(model, changes.optimizer()),
        step_handle(nullptr) {
    const auto named = state().job().world().name_calls("the start of a Trainer");
    check_is_first(state());
    check_options(state(), options);
    detail::check_equal_models(state().job(), model);
    changes.check_optimizer();
    state().loop().declare_reducing("the start of a Trainer");
    state().attach(model);
    saves.emplace(detail::TrainingSaves::Parts{session, trained, position});
    if (!state().job().config().checkpoint.directory.empty()) {
      detail::check_model(state().job(), detail::model_tensors(model));
      detail::tell_unnamed(state().job(), changes.optimizer());
    }
    rollbacks.emplace(detail::Rollbacks::Parts{session, trained, position, *saves});
    detail::TrainingSaves::Resumed saved;
    if (is_resumed()) saved = saves->resume();
    position.seed = state().job().config().run.seed;
    check_divisible(state(), changes.optimizer());
    reducer.emplace(Reducer(session, detail::named_parameters(model), model.buffers()));
    if (detail::Sharding* sharding = reducer->sharding()) {
      sharding->saves().divide(changes.optimizer().state(), detail::model_tensors(model));
      trained.show(*sharding);
    }
    if (!saved.reducer.empty()) state().job().agree(reducer->load_state(saved.reducer));
    detail::load_rows(state(), saved.rows);
    if (masters != nullptr) adopt(*masters);
    buffers.emplace(state(), model);
    trained.show(*reducer);
    rollbacks->start_after(session.plan().rollback.ticket);
  }

  // A loop that was left by `break` still has its open step.
  ~Impl() {
    if (!attempt || !saves->is_behind() || std::uncaught_exceptions() > 0) return;
    state().job().log().warning(
        "the training loop ended in the middle of a step, so the steps after the last save are not "
        "saved; end the loop by trainer.stop()");
  }

  // The model's weights came from rank 0 by the reducer, or from a save.
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
    attempt.emplace(detail::StepAttempt::Parts{session, options, *rollbacks, changes, *buffers,
                                               *reducer, reducer->sharding()});
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
      throw Error(failed_precondition(
          "trainer step: expected step.update() before the next step, found none; call "
          "step.update() once in every pass of the loop, on every rank"));
    }
    const RoundId round = state().step().round();
    rollbacks->roll_back_if_ordered(*reducer);
    attempt.reset();
    // The end of the step stores its remaining results (its row, magnitudes).
    rollbacks->keep_snapshot(round);
    save_if_due();
  }

  void save_if_due() {
    const bool is_last = !wants_another_step();
    const bool is_asked = std::exchange(loop.save_is_asked, false);
    if (!saves->is_behind()) return;  // a repeated attempt, or the end
    if (is_last || is_asked) {
      saves->write(OnFailure::raise);
    } else if (saves->is_due()) {
      saves->write(OnFailure::report);
    }
  }

  // A run can continue from the end of a step only.
  void save_now() {
    if (attempt && loop.is_running && !attempt->is_updated()) {
      throw Error(failed_precondition("save: expected a call after step.update() or outside of the "
                                      "loop, found a call in a step before its update()"),
                  Error::Scope::all_ranks);
    }
    saves->check_folder();
    if (attempt && loop.is_running) {
      loop.save_is_asked = true;
      return;
    }
    if (attempt && attempt->is_updated()) end_step();  // of a loop that was left by `break`
    saves->write(OnFailure::raise);
  }

  // Runs at the loop's end, `break` or exception: the data set is not read any more. After a
  // `break` a requested save is still to be written.
  void leave_loop() noexcept try {
    loop.is_running = false;
    data.forget();
    const bool is_left_by_break =
        attempt && attempt->is_updated() && std::uncaught_exceptions() == 0;
    if (is_left_by_break && loop.save_is_asked) end_step();
  } catch (const std::exception& error) {
    state().job().log().error(error.what() + io::limit_behind(error));
  }

  Session& session;
  const TrainerOptions options;
  detail::TrainingPosition position;
  detail::TrainingData data;
  detail::ModelUpdate changes;
  TrainerState trained;
  std::optional<detail::TrainingSaves> saves;
  std::optional<detail::Rollbacks> rollbacks;
  std::optional<Reducer> reducer;
  std::optional<detail::StepBuffers> buffers;
  double last_loss = 0;                 // the last completed step's
  std::uint64_t repeated = 0;           // attempts at a step
  std::uint64_t steps_at_stop = ~0ull;  // 0 = asked from outside
  std::optional<detail::StepAttempt> attempt;
  struct {
    bool is_running = false;     // within the range from steps()
    bool save_is_asked = false;  // by save(), for the end of the step
  } loop;
  TrainerStep step_handle;
};

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->step_handle = TrainerStep(this);
}

Trainer::Trainer(Session& session, torch::nn::Module& model, AdamW& optimizer,
                 TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model,
                                     detail::make_port(optimizer, detail::model_tensors(model)),
                                     std::move(options))) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                 TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model,
                                     detail::make_port(optimizer, detail::model_tensors(model)),
                                     std::move(options))) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
                 AdamW& optimizer, TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer, masters.named()),
                                     std::move(options), &masters)) {}

Trainer::Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
                 torch::optim::Optimizer& optimizer, TrainerOptions options)
    : Trainer(std::make_unique<Impl>(session, model, detail::make_port(optimizer, masters.named()),
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
  if (impl_->attempt) impl_->end_step();  // open step of a loop that was left by `break`
  impl_->loop.is_running = true;
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
