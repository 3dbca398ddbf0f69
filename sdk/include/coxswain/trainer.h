// Trainer runs the whole loop, the third depth of use: data shares, gradient averaging, skipping of
// non-finite steps, rollback, checkpoints and resume, in lockstep on all ranks:
//
//   cox::Trainer trainer(session, *model, optimizer);
//   for (auto& step : trainer.steps(dataset)) {
//     auto loss = step.forward([&] { return model->loss(step.batch()); });
//     step.backward(loss);
//     step.update();
//   }
//
// Each global step takes the next `global_batch` samples of a seeded permutation and gives every
// rank its share of them, so no sample is dropped or repeated in an epoch. Random numbers inside
// forward are keyed by (seed, step, first sample of the share): a resumed run draws the same ones.
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

// TrainingPart is state of the program's own that a run needs to go on as if nothing had happened:
// a learning-rate schedule with a memory, the statistics of a sampler. Equal on all ranks, or else
// rank 0's becomes that of all of them by a resume.
struct TrainingPart {
  std::function<std::vector<NamedTensor>()> state;             // may be live tensors
  std::function<Status(std::span<const NamedTensor>)> load{};  // takes over what state() gave
};

struct TrainerOptions {
  std::int64_t global_batch = 8;  // samples per step over all ranks, at least one a rank
  // Samples of a micro-batch. Shares are whole micro-batches, and TrainerStep::accumulate() runs
  // forward and backward of each. Reproducible mode and policy `accumulation` need it. 0 = a rank's
  // share is computed at once.
  std::int64_t micro_batch = 0;
  // The number of steps whose batches a thread loads ahead of time, by Dataset::get() beside the
  // training. Shares of the batch then change that many steps later. 0 = each batch is loaded in
  // its own step, as policy `accumulation` needs it.
  std::size_t prefetch = 0;
  std::uint64_t steps = 100;  // optimizer steps in total, a resumed run's earlier ones included
  double clip_norm = 0;       // global L2 norm to clip gradients to, >= 0; 0 = no clipping
  // Returns the learning rate of a step by its number; set before every update. Empty = leave it
  // alone. REQUIRES: it is the same on all ranks, which compare it in every step.
  std::function<double(std::uint64_t step)> learning_rate{};
};

struct TrainingProgress {
  std::uint64_t step = 0;      // updates done or skipped
  std::uint64_t consumed = 0;  // samples taken since the start: the global cursor
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t repeated = 0;  // attempts at a step: reproducible mode, or out of memory
  double loss = 0;             // of the last completed step
  bool resumed = false;
  bool stopped = false;  // left early because somebody asked (SIGTERM)
};

class Trainer;

// TrainerStep is one global step as this rank sees it.
class TrainerStep {
 public:
  std::uint64_t number() const;
  const Batch& batch() const;  // this rank's share; zero samples are possible (shares)

  // Runs forward and backward of every micro-batch of this rank's share, one after another: calls
  // `loss_of` with the samples of each for their mean loss, with random numbers keyed by (seed,
  // step, its first sample). `weight_of` returns what that mean stands for (tokens, say); empty =
  // the samples. Call it once a step, instead of forward() and backward().
  void accumulate(const std::function<at::Tensor(const Batch&)>& loss_of,
                  const std::function<double(const Batch&)>& weight_of = {});

  // Calls `loss_of_batch` with keyed random numbers inside phase forward and returns what it
  // returned: the mean loss over the share. For shares of one micro-batch. For an empty share it
  // calls nothing and returns an undefined tensor, which backward() accepts.
  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch);
  // Runs the backward pass; required before update() wherever the share has samples. `weight`: what
  // the mean loss stands for (tokens, say), finite and >= 0; none = the samples of the share.
  // Communicates without waiting.
  void backward(const at::Tensor& loss, std::optional<double> weight = {});
  // Averages and clips the gradients, and updates or skips; once a step. Collective; waits by
  // polling. What follows from the step (rollback, a save that is due) happens when the loop goes
  // on to the next.
  void update();
  // Books time of your own code on a phase of this step, until the scope ends. Local.
  PhaseScope phase(Phase phase);
  // Adds the tokens of this rank's share of the step, for tokens a second in telemetry. Local.
  void tokens(std::uint64_t count);
  // Adds a scalar of your own to the run directory; names and their number as StepScope::log(),
  // where TrainerOptions::learning_rate takes the place of one ("lr"). Local.
  void log(std::string_view name, double value);

 private:
  friend class Trainer;
  explicit TrainerStep(Trainer* trainer) : trainer_(trainer) {}
  Trainer* trainer_;
};

class Trainer {
 public:
  struct Impl;

  // Collective. Broadcasts parameters and buffers from rank 0; with checkpoint.resume continues
  // from the newest whole save. Throws cox::Error (models differ, nothing to resume, damaged save).
  Trainer(Session& session, torch::nn::Module& model, AdamW& optimizer,
          TrainerOptions options = {});
  Trainer(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
          TrainerOptions options = {});
  // Of a model in bf16 or fp16 whose optimizer holds the masters' tensors: the trainer moves
  // gradients and weights between the two, and saves the masters with the rest.
  Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters, AdamW& optimizer,
          TrainerOptions options = {});
  Trainer(Session& session, torch::nn::Module& model, MasterWeights& masters,
          torch::optim::Optimizer& optimizer, TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Saves, resumes and rolls back this with the rest of the training state. After a resume it is
  // loaded here; where the save has nothing of that name it keeps its present values, and the log
  // says so. The average (or what `part` refers to) must outlive the trainer. On every rank, before
  // the first step. Throws cox::Error for a name that is taken, empty or has a '/', and on a state
  // that does not fit.
  void add_state(std::string_view name, WeightAverage& average);
  void add_state(std::string_view name, TrainingPart part);

  class Steps;
  // Returns a range over the remaining steps. Collective. REQUIRES: the data set is the same on all
  // ranks; one of another size or other samples than on another rank, or than in the save that was
  // resumed from, is an error (eight samples are looked at, unless they differ each time that they
  // are read). Leave the loop by stop(): after a `break` the open step is not reported and nothing
  // is saved, until save() is called or the steps are looped over again; a save() called in that
  // step is written by the `break`. Data set and trainer must outlive the range; the data set may
  // go before the trainer.
  Steps steps(const Dataset& dataset);

  TrainingProgress progress() const;
  // Writes a checkpoint: now or, within the loop and after step.update(), when the open step ends.
  // Collective. Throws cox::Error on all ranks without checkpoint.directory, in a step before its
  // update(), or (where it writes) when it cannot be written.
  void save();
  // Ends the loop after the open step, with a last save; where a rollback takes that step back, it
  // ends once the step was made again. Local. REQUIRES: all ranks call it in the same step.
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
  // Waits for the batch that is being got ahead of time, if any.
  ~Steps();
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  Iterator begin();
  End end() const { return {}; }

 private:
  Impl* impl_;
};

}  // namespace cox
