// Trainer runs the whole loop, the third depth of use (docs/watching.md): data shares, averages,
// skipped non-finite steps, rollback, saves and resume. All ranks run in lockstep:
//
//   cox::Trainer trainer(session, *model, optimizer);
//   for (auto& step : trainer.steps(dataset)) {
//     auto loss = step.forward([&] { return model->loss(step.batch()); });
//     step.backward(loss);
//     step.update();
//   }
//
// Each global step uses the next `global_batch` samples of a seeded permutation and gives every
// rank its share, so no sample is dropped or repeated in an epoch. Random numbers inside forward
// are keyed by (seed, step, first sample of the share), so a resumed run draws the same numbers.
// Shares in several micro-batches (TrainerOptions::micro_batch):
//
//   for (auto& step : trainer.steps(dataset)) {
//     step.accumulate([&](const cox::Batch& batch) { return model->loss(batch); });
//     step.update();
//   }
//
// Thread rule: the training thread. The trainer keeps references to session, model and optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/dataset.h"
#include "coxswain/named_tensor.h"
#include "coxswain/session.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace cox {

class AdamW;
class MasterWeights;
class WeightAverage;

// TrainingPart is state of the program's own that a resumed run needs: a learning-rate schedule
// with a memory, the statistics of a sampler. The state should be equal on all ranks, because a
// resume gives rank 0's state to all ranks.
struct TrainingPart {
  std::function<std::vector<NamedTensor>()> state;             // may be live tensors
  std::function<Status(std::span<const NamedTensor>)> load{};  // loads a list that state() returned
};

struct TrainerOptions {
  std::int64_t global_batch = 8;  // samples per step over all ranks, at least one a rank
  // Samples of a micro-batch. Shares are whole micro-batches, and TrainerStep::accumulate() runs
  // forward and backward of each. Reproducible mode and policy `accumulation` need micro-batches. 0
  // = a rank computes its share at once.
  std::int64_t micro_batch = 0;
  // The number of steps whose batches a thread loads ahead, by Dataset::get() beside the training.
  // Changes of shares then take effect that many steps later. 0 = each batch is loaded in its own
  // step, which policy `accumulation` requires.
  std::size_t prefetch = 0;
  std::uint64_t steps = 100;  // optimizer steps in total, a resumed run's earlier ones included
  double clip_norm = 0;       // global L2 norm to clip gradients to, >= 0; 0 = no clipping
  // Returns the learning rate of a step by the step's number; called before every update. Empty =
  // the optimizer's rate stays. REQUIRES: equal rates on all ranks, which compare them in every
  // step.
  std::function<double(std::uint64_t step)> learning_rate{};
};

struct TrainingProgress {
  std::uint64_t step = 0;      // updates done or skipped
  std::uint64_t consumed = 0;  // samples used since the start, over all ranks
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t repeated = 0;  // attempts that ReductionOutcome::repeat discarded
  double loss = 0;             // the last step's mean over all ranks; NaN if not finite
  bool resumed = false;
  bool stopped = false;  // left early: a request (SIGTERM), or stop()
};

class Trainer;

// TrainerStep is this rank's view of one global step.
class TrainerStep {
 public:
  std::uint64_t number() const;
  // Returns this rank's share of the step's samples, on the device of the model's first parameter.
  // A share may be empty. Valid during the step.
  const Batch& batch() const;

  // Runs forward and backward of every micro-batch of this rank's share, one after another.
  // `loss_of` returns the mean loss of a micro-batch. Random numbers are keyed by (seed, step,
  // first sample of the micro-batch). `weight_of` returns the weight of the mean (tokens, say);
  // empty = the number of samples. Call accumulate() once a step, instead of forward() and
  // backward().
  void accumulate(const std::function<at::Tensor(const Batch&)>& loss_of,
                  const std::function<double(const Batch&)>& weight_of = {});

  // Calls `loss_of_batch` with keyed random numbers inside phase forward and returns its result,
  // the mean loss over the share. For shares of one micro-batch. For an empty share `loss_of_batch`
  // is not called, and the result is an undefined tensor, which backward() accepts.
  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch);
  // Runs the backward pass. Required before update() if the share has samples. `weight` is the
  // weight of the mean loss (tokens, say), finite and >= 0; none = the samples of the share.
  // Communicates without waiting.
  void backward(const at::Tensor& loss, std::optional<double> weight = {});
  // Averages and clips the gradients, and updates or skips; once a step. Collective; waits by
  // polling. Consequences of the step (rollback, a save that is due) happen when the loop moves to
  // the next step.
  void update();
  // Books the time of your own code on a phase of this step, until the scope ends. Local.
  PhaseScope phase(Phase phase);
  // Adds the tokens of this rank's share of the step, for tokens a second in telemetry. Local.
  void tokens(std::uint64_t count);
  // Adds a scalar of your own to the run directory. Names and their number are limited as in
  // StepScope::log(); TrainerOptions::learning_rate uses one of the names ("lr"). Local.
  void log(std::string_view name, double value);

 private:
  friend class Trainer;
  explicit TrainerStep(Trainer* trainer) : trainer_(trainer) {}
  Trainer* trainer_;
};

class Trainer {
 public:
  struct Impl;

  // Collective. Broadcasts parameters and buffers from rank 0. With checkpoint.resume, continues
  // from the newest whole save. Throws cox::Error on all ranks if models or options differ between
  // ranks, an option is out of range, a save is wanted and none is found, or the save is damaged.
  Trainer(Session& session, torch::nn::Module& model, AdamW& optimizer,
          TrainerOptions options = {});
  Trainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
          TrainerOptions options = {});
  // Trains a model in bf16 or fp16 whose optimizer holds the tensors of `masters`. The trainer
  // moves gradients and weights between model and masters, and saves the masters with the rest.
  Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters, AdamW& optimizer,
          TrainerOptions options = {});
  Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
          torch::optim::Optimizer& optimizer, TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Saves, resumes and rolls back an average or a part with the rest of the training state. After a
  // resume the state is loaded in this call. If the save has no state of the name, the present
  // values stay, and the log reports so. The average, or the objects that `part` refers to, must
  // outlive the trainer. Call add_state() on every rank, before the first step. Throws cox::Error
  // for a name that is taken, empty or contains a '/', and for a state that does not fit.
  void add_state(std::string_view name, WeightAverage& average);
  void add_state(std::string_view name, TrainingPart part);

  class Steps;
  // Returns a range over the remaining steps. Collective. Data set and trainer must outlive the
  // range; the data set may go before the trainer. REQUIRES: the data set is the same on all ranks.
  //
  // A data set of another size or other samples than on another rank, or than in the resumed save,
  // is an error. Eight samples are compared, unless a sample differs at each read. Leave the loop
  // by stop(). After a `break` the open step is not reported and nothing is saved, until save() is
  // called or the loop starts again. A save() called in the open step is written by the `break`.
  Steps steps(const Dataset& dataset);

  TrainingProgress progress() const;
  // Writes a checkpoint at once. Within the loop, after step.update(), the checkpoint is written
  // when the open step ends. Collective. Throws cox::Error on all ranks without
  // checkpoint.directory, in a step before its update(), or when a write fails.
  void save();
  // Ends the loop after the open step, with a last save. If a rollback undoes the open step, the
  // loop ends once the step was repeated. Local. REQUIRES: all ranks call stop() in the same step.
  void stop();

 private:
  friend class TrainerStep;
  explicit Trainer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

class Trainer::Steps {
 public:
  struct End {};
  class Iterator {
   public:
    explicit Iterator(Impl* impl) : impl_(impl) {}
    TrainerStep& operator*() const;
    Iterator& operator++();
    bool operator!=(End) const;

   private:
    Impl* impl_;
  };
  explicit Steps(Impl* impl) : impl_(impl) {}
  // Waits for a batch that is being loaded ahead, if any.
  ~Steps();
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  Iterator begin();
  End end() const { return {}; }

 private:
  Impl* impl_;
};

}  // namespace cox
