#include "coxswain/fit.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/transport/reduction.h"
#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/sample_plan.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/device/transfer.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/epoch_book.h"
#include "sdk/src/training/training_saves.h"

namespace cox {
namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : model_(model), was_on_(model.is_training()) {
    for (const auto& module : model.modules(/*include_self=*/false)) {
      modes_.push_back({module, module->is_training()});
    }
    model.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  // train() also changes all modules below, which come later in the list.
  ~EvaluationMode() {
    model_.train(was_on_);
    for (const Mode& mode : modes_) mode.module->train(mode.was_on);
  }

 private:
  struct Mode {
    std::shared_ptr<torch::nn::Module> module;
    bool was_on;
  };
  torch::nn::Module& model_;
  const bool was_on_;
  std::vector<Mode> modes_;
};

std::vector<std::int64_t> samples_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

// Returns the mean loss of a model over an evaluation set. Ranks evaluate whole batches, in numbers
// that fit their speed (agreed_paces), so that no rank waits for a slow one. Losses are added in
// the order of the batches, so the result does not depend on the number of ranks or on the division
// of batches. The model is in evaluation mode meanwhile; afterwards every module's mode is
// restored. Not part of the open step's time. Throws the same cox::Error on all ranks if `loss` or
// the data set throws on one. Collective. REQUIRES: batch >= 1.
double evaluate(Session& session, torch::nn::Module& model, const Dataset& dataset,
                std::int64_t batch, const std::function<at::Tensor(const Batch&)>& loss) {
  detail::SessionState& state = session.state();
  const auto named = state.job().world().name_calls("an evaluation");
  const detail::Clock::time_point began = detail::Clock::now();
  detail::StepRecorder& recorder = state.recorder();
  const Activity before = recorder.activity().do_aside(Activity::evaluating, began);
  const std::int64_t batches = (dataset.size() + batch - 1) / batch;
  const auto counts = detail::require(SamplePlan::assign(batches, detail::agreed_paces(state)));
  const auto mine = SamplePlan::slice(counts, static_cast<std::size_t>(session.rank()));
  const c10::Device device = detail::device_of(model);
  std::vector<double> sums(static_cast<std::size_t>(batches));  // 0 for other ranks' batches
  session.together([&] {
    const torch::NoGradGuard no_grad;
    const EvaluationMode mode(model);
    for (std::int64_t i = mine.first; i < mine.first + mine.count; ++i) {
      const std::int64_t size = std::min(batch, dataset.size() - i * batch);
      Batch samples = dataset.get(samples_from(i * batch, size));
      samples.inputs = detail::sent_to(samples.inputs, device);
      samples.targets = detail::sent_to(samples.targets, device);
      sums[static_cast<std::size_t>(i)] = loss(samples).item<double>() * static_cast<double>(size);
    }
  });
  const auto shared =
      detail::reduce_values(state.job().data(), std::span(sums), transport::sum_f64());
  detail::require(shared, "evaluation");
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  recorder.activity().do_aside(before, detail::Clock::now());
  recorder.leave_out(began, detail::Clock::now());
  return sum / static_cast<double>(dataset.size());
}

TrainerOptions trainer_options(const FitOptions& options) {
  TrainerOptions made;
  made.global_batch = options.global_batch;
  made.micro_batch = options.micro_batch;
  made.clip_norm = options.clip_norm;
  made.learning_rate = options.learning_rate;
  made.steps = std::numeric_limits<std::uint64_t>::max();  // epochs end the training
  return made;
}

class Fit {
 public:
  Fit(Session& session, torch::nn::Module& model, Trainer& trainer, const Dataset& dataset,
      const FitLoss& loss, const FitOptions& options)
      : session_(session),
        model_(model),
        trainer_(trainer),
        dataset_(dataset),
        loss_(loss),
        options_(options),
        size_(static_cast<std::uint64_t>(dataset.size())),
        end_(options.epochs * size_),
        book_(size_) {}

  FitResult run() {
    if (trainer_.progress().consumed < end_) train();
    FitResult result;
    result.progress = trainer_.progress();
    result.progress.stopped = result.progress.consumed < end_;
    book_.rewind(result.progress.consumed);
    result.epochs = book_.epochs();
    for (const NamedTensor& named : detail::model_tensors(model_)) {
      result.model.push_back({named.name, named.tensor.detach().clone()});
    }
    return result;
  }

 private:
  void train() {
    for (TrainerStep& step : trainer_.steps(dataset_)) {
      const std::uint64_t from = trainer_.progress().consumed;
      book_.rewind(from);  // changes the book after a rollback only
      const std::uint64_t number = step.number();
      const std::uint64_t skipped = trainer_.progress().skipped;
      step.accumulate(loss_);
      step.update();
      const std::uint64_t to = trainer_.progress().consumed;
      if (to == from) continue;  // to be repeated
      const bool was_skipped = trainer_.progress().skipped != skipped;
      tell_step(number, from, to, was_skipped ? std::nan("") : trainer_.progress().loss);
      if (to % size_ == 0) end_epoch(to, number + 1);
    }
  }

  void tell_step(std::uint64_t number, std::uint64_t from, std::uint64_t to, double loss) {
    book_.add(from, to, loss);
    if (options_.on_step) options_.on_step({number, from / size_, loss});
  }

  void end_epoch(std::uint64_t cursor, std::uint64_t steps) {
    FitEpoch epoch{.epoch = cursor / size_ - 1, .steps = steps};
    epoch.loss = book_.loss_of_epoch_before(cursor);
    if (options_.evaluation != nullptr) {
      epoch.evaluation_loss =
          evaluate(session_, model_, *options_.evaluation, evaluation_batch(), loss_);
    }
    book_.close(epoch);
    const FitNext next = options_.on_epoch ? options_.on_epoch(epoch) : FitNext::go_on;
    if (next == FitNext::stop) end_ = std::min(end_, cursor);
    if (cursor >= end_) trainer_.stop();
  }

  std::int64_t evaluation_batch() const {
    if (options_.evaluation_batch > 0) return options_.evaluation_batch;
    if (options_.micro_batch > 0) return options_.micro_batch;
    return std::max<std::int64_t>(1, options_.global_batch / session_.world_size());
  }

  Session& session_;
  torch::nn::Module& model_;
  Trainer& trainer_;
  const Dataset& dataset_;
  const FitLoss& loss_;
  const FitOptions& options_;
  const std::uint64_t size_;
  std::uint64_t end_;  // a cursor; a rollback of the last step does not move it
  detail::EpochBook book_;
};

// Ranks that disagree on these options would wait for each other, or stop at different epochs. The
// trainer compares its own options. Collective.
void check_alike(Session& session, const FitOptions& options) {
  const auto named = session.state().job().world().name_calls("the start of cox::fit");
  const bool evaluates = options.evaluation != nullptr;
  const std::uint64_t facts[] = {
      options.epochs, evaluates ? 1u : 0u,
      static_cast<std::uint64_t>(evaluates ? options.evaluation->size() : 0),
      static_cast<std::uint64_t>(options.evaluation_batch)};
  const std::string different = detail::ranks_that_differ(
      session.state().job().gather(crc32(std::as_bytes(std::span(facts)))));
  if (different.empty()) return;
  throw Error(
      invalid_argument(
          "FitOptions: expected the same epochs, evaluation data (of the same "
          "size) and evaluation_batch on all ranks, found different ones from rank 0's on rank " +
          different + "; give every rank the same options"),
      Error::Scope::all_ranks);
}

template <class Optimizer>
FitResult fit_with(Session& session, torch::nn::Module& model, Optimizer& optimizer,
                   const Dataset& dataset, const FitLoss& loss, const FitOptions& options) {
  check_alike(session, options);
  Trainer trainer(session, model, optimizer, trainer_options(options));
  return Fit(session, model, trainer, dataset, loss, options).run();
}

}  // namespace

FitResult fit(Session& session, torch::nn::Module& model, AdamW& optimizer, const Dataset& dataset,
              const FitLoss& loss, FitOptions options) {
  return fit_with(session, model, optimizer, dataset, loss, options);
}

FitResult fit(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
              const Dataset& dataset, const FitLoss& loss, FitOptions options) {
  return fit_with(session, model, optimizer, dataset, loss, options);
}

}  // namespace cox
