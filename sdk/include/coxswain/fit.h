// fit() trains without a loop of your own. The program gives data, model, optimizer and loss. fit()
// runs epochs, divides the samples among ranks, averages gradients, saves, and returns the final
// state:
//
//   cox::FitResult result = cox::fit(
//       session, *model, optimizer, dataset,
//       [&](const cox::Batch& batch) { return model->loss(batch); },
//       {.epochs = 10, .global_batch = 64, .evaluation = &held_out});
//
// fit() runs a Trainer, so every setting of the configuration has its usual meaning
// (checkpoint.directory and checkpoint.resume, reduction.*, policies). Collective: every rank calls
// fit() with the same arguments. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "coxswain/named_tensor.h"
#include "coxswain/trainer.h"

namespace cox {

struct FitStep {
  std::uint64_t step = 0;   // from 0
  std::uint64_t epoch = 0;  // from 0
  double loss = 0;          // mean over the step's samples of all ranks; NaN in a skipped step
};

struct FitEpoch {
  std::uint64_t epoch = 0;
  std::uint64_t steps = 0;                  // total at the end of the epoch
  double loss = 0;                          // mean over the epoch's samples, without skipped steps
  std::optional<double> evaluation_loss{};  // mean over the evaluation set, after the epoch
};

enum class FitNext : std::uint8_t { go_on, stop };

struct FitOptions {
  std::uint64_t epochs = 1;  // passes over the data set, a resumed run's earlier ones included
  // As in TrainerOptions:
  std::int64_t global_batch = 8;
  std::int64_t micro_batch = 0;
  double clip_norm = 0;
  std::function<double(std::uint64_t step)> learning_rate{};

  // Evaluated after every epoch, in evaluation mode and without gradients. Each rank takes a part.
  const Dataset* evaluation = nullptr;
  std::int64_t evaluation_batch = 0;  // samples at once; 0 = a micro-batch, or a rank's even share
  // Callbacks run on every rank after each update and each epoch, with numbers that are equal on
  // all ranks. After a rollback the callbacks run again for repeated steps and epochs, also in the
  // last epoch. on_epoch must return the same on all ranks; `stop` ends the training after the
  // epoch, and a rollback does not undo the stop.
  std::function<void(const FitStep&)> on_step{};
  std::function<FitNext(const FitEpoch&)> on_epoch{};
};

struct FitResult {
  std::vector<NamedTensor> model;  // parameters, then buffers, by name: copies
  TrainingProgress progress;       // `stopped`: SIGTERM on a rank ended the run early
  std::vector<FitEpoch> epochs;    // epochs that ended in this run
};

// FitLoss returns the mean loss over a batch.
using FitLoss = std::function<at::Tensor(const Batch&)>;

// Throws cox::Error as Trainer does. Exceptions of `loss` and of the data sets pass through.
FitResult fit(Session& session, torch::nn::Module& model, AdamW& optimizer, const Dataset& dataset,
              const FitLoss& loss, FitOptions options = {});
FitResult fit(Session& session, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
              const Dataset& dataset, const FitLoss& loss, FitOptions options = {});

}  // namespace cox
