#include "coxswain/trainer.h"

#include <torch/torch.h>

#include "coxswain/error.h"
#include "sdk/src/training/trainer_impl.h"

namespace cox {

Trainer::Trainer(Session& session, torch::nn::Module& model, AdamW& optimizer,
                 TrainerOptions options)
    : impl_(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                   std::move(options))) {
  impl_->step_handle = TrainerStep(this);
}

Trainer::Trainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                 TrainerOptions options)
    : impl_(std::make_unique<Impl>(session, model, detail::make_port(optimizer),
                                   std::move(options))) {
  impl_->step_handle = TrainerStep(this);
}

Trainer::~Trainer() = default;

Trainer::Steps Trainer::steps(const Dataset& dataset) {
  impl_->take_dataset(dataset.size());
  SamplePlanOptions plan;
  plan.size = dataset.size();
  plan.global_batch = impl_->options.global_batch;
  plan.seed = impl_->state.config().run.seed;
  auto created = SamplePlan::create(plan);
  if (!created.ok()) throw Error(created.status(), Error::Scope::all_ranks);
  impl_->queue.emplace(dataset, *created, impl_->options.prefetch);
  return Steps(impl_.get());
}

const TrainingProgress& Trainer::progress() const {
  impl_->progress.stopped = impl_->is_stopped();
  return impl_->progress;
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
