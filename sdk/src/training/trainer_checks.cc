// What must be the same on all ranks, or as in the save that a run goes on from, before the trainer
// takes a step.
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "coordinator/core/hash.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/start_equal.h"
#include "sdk/src/training/trainer_impl.h"

namespace cox {
namespace {

// Collective: "1, 3", or empty when all have rank 0's number.
std::string ranks_unlike_root(detail::SessionState& state, std::uint64_t number) {
  const auto numbers = detail::gather_numbers(state.data(), number);
  if (!numbers.ok()) throw Error(numbers.status());
  return detail::ranks_that_differ(*numbers);
}

std::uint64_t fingerprint_of(const TrainerOptions& options) {
  std::string told;
  for (const std::uint64_t value : {static_cast<std::uint64_t>(options.global_batch),
                                    static_cast<std::uint64_t>(options.micro_batch),
                                    static_cast<std::uint64_t>(options.prefetch), options.steps,
                                    std::bit_cast<std::uint64_t>(options.clip_norm)}) {
    told += std::to_string(value) + " ";
  }
  return crc32(std::as_bytes(std::span(told)));
}

Status validate(const TrainerOptions& options, int world_size, const Config& config) {
  const auto found = [](const char* expected, auto value) {
    return invalid_argument(std::string(expected) + ", found " + std::to_string(value));
  };
  if (options.global_batch < world_size) {
    return invalid_argument("global_batch: expected at least one sample a rank, found " +
                            std::to_string(options.global_batch) + " for " +
                            std::to_string(world_size) + " ranks");
  }
  if (options.micro_batch < 0)
    return found("micro_batch: expected 0 or more samples", options.micro_batch);
  if (!(options.clip_norm >= 0))
    return found("clip_norm: expected 0 (no clipping) or more", options.clip_norm);
  if (!config.reduction.reproducible) return ok_status();
  if (options.micro_batch == 0) {
    return invalid_argument(
        "reduction.reproducible: expected micro-batches of a fixed size, found none; set "
        "TrainerOptions::micro_batch and use TrainerStep::accumulate()");
  }
  if (config.precision.fp8_scaling != Fp8Scaling::delayed) return ok_status();
  return invalid_argument(
      "reduction.reproducible: expected precision.fp8_scaling=current, found delayed, whose scales "
      "follow from what each rank saw by itself; use current scaling");
}

}  // namespace

void Trainer::Impl::check_is_first() const {
  if (!state.is_started()) return;
  throw Error(failed_precondition(
                  "Trainer: expected a session without steps, Reducer or other Trainer, found one "
                  "that has begun; a session has one Trainer, made right after Session::start (for "
                  "several models in one loop: ManualParallel)"),
              Error::Scope::all_ranks);
}

// Parameters of equal shapes in another order would be averaged with each other.
void Trainer::Impl::check_equal_names() const {
  const std::string different =
      ranks_unlike_root(state, detail::fingerprint(detail::model_tensors(model)));
  if (different.empty()) return;
  throw Error(invalid_argument("expected the same model (names, shapes, types and order of "
                               "parameters) on all ranks, found another than rank 0's on rank " +
                               different + "; build the same model on every rank"),
              Error::Scope::all_ranks);
}

// Of a model that was cloned since, say, or of master weights: it would update nothing.
void Trainer::Impl::check_optimizer() const {
  const auto is_of_model = [this](const at::Tensor& held) {
    return std::ranges::any_of(parameters, [&](const at::Tensor& p) { return p.is_same(held); });
  };
  const bool holds_some = std::ranges::any_of(optimizer->parameters(), is_of_model);
  state.agree(holds_some ? ok_status()
                         : invalid_argument(
                               "Trainer: expected an optimizer of the model's parameters, or of "
                               "some of them, found one that holds none; make it from "
                               "model.parameters()"));
}

void Trainer::Impl::check_options() const {
  const std::string different = ranks_unlike_root(state, fingerprint_of(options));
  const Status status =
      different.empty() ? validate(options, session.world_size(), state.config())
                        : invalid_argument(
                              "TrainerOptions: expected the same global_batch, micro_batch, "
                              "prefetch, steps and clip_norm on all ranks, found others than rank "
                              "0's on rank " +
                              different + "; give every rank the same");
  if (!status.ok()) throw Error(status, Error::Scope::all_ranks);
}

// The cursor of a save is a place in one order of samples.
void Trainer::Impl::check_resumed(const detail::TrainingPosition& resumed) const {
  const std::string different = ranks_unlike_root(state, resumed.step);
  if (!different.empty()) {
    throw Error(failed_precondition("resume: expected all ranks to see the same newest save, "
                                    "found another on rank " +
                                    different + "; the folder must be shared"),
                Error::Scope::all_ranks);
  }
  const std::uint64_t seed = state.config().run.seed;
  if (!resumed.seed || *resumed.seed == seed) return;
  throw Error(failed_precondition("resume: expected run.seed=" + std::to_string(*resumed.seed) +
                                  ", with which the save was made, found " + std::to_string(seed) +
                                  "; another seed gives samples another order"),
              Error::Scope::all_ranks);
}

void Trainer::Impl::take_dataset(std::int64_t samples) {
  const auto size = static_cast<std::uint64_t>(samples);
  Status status;
  const std::string different = ranks_unlike_root(state, size);
  const bool is_first_after_resume = progress.resumed && !queue && position.samples > 0;
  if (!different.empty()) {
    status = invalid_argument(
        "expected a data set of the same size on all ranks, found another than rank 0's on rank " +
        different + "; give every rank the same data");
  } else if (is_first_after_resume && position.samples != size) {
    status =
        failed_precondition("resume: expected the data set of the save, of " +
                            std::to_string(position.samples) + " samples, found one of " +
                            std::to_string(size) + "; a place in one means nothing in another");
  }
  if (!status.ok()) throw Error(status, Error::Scope::all_ranks);
  position.samples = size;
}

}  // namespace cox
