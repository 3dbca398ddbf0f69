#include "sdk/src/training/step_queue.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "coordinator/core/hash.h"
#include "coxswain/error.h"
#include "coxswain/trainer.h"
#include "sdk/src/device/transfer.h"
#include "sdk/src/training/equal_ranks.h"

namespace cox::detail {
namespace {

std::uint64_t unsigned_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

Result<std::vector<std::int64_t>> units_of_ranks(const ShareRequest& request, std::int64_t units) {
  if (!request.shares.empty()) return SamplePlan::assign(units, request.shares);
  const std::vector<std::uint32_t> even(static_cast<std::size_t>(request.world_size), 1);
  return SamplePlan::assign(units, even);
}

std::vector<std::int64_t> samples_of(const SamplePlan& plan, const StepShare& share) {
  return plan.indices(share.step.cursor, share.slice.first, share.slice.count);
}

}  // namespace

std::uint64_t fingerprint_of(const TrainerOptions& options) {
  Fnv1a64 hash;
  for (const std::uint64_t value : {static_cast<std::uint64_t>(options.global_batch),
                                    static_cast<std::uint64_t>(options.micro_batch),
                                    static_cast<std::uint64_t>(options.prefetch), options.steps,
                                    std::bit_cast<std::uint64_t>(options.clip_norm)}) {
    hash.add(value);
  }
  return hash.value();
}

Status validate(const TrainerOptions& options, int world_size, const Config& config) {
  const auto found = [](const char* expected, auto value) {
    return invalid_argument(expected, ", found ", value);
  };
  if (options.global_batch < world_size) {
    return invalid_argument("global_batch: expected at least one sample a rank, found " +
                            std::to_string(options.global_batch) + " for " +
                            std::to_string(world_size) +
                            " ranks; give a larger batch or start fewer ranks");
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
      "depend on each rank's own values; use current scaling");
}

void ShareActuator::contribute(JobFacts& job) const {
  job.global_batch = static_cast<std::uint64_t>(options_.global_batch);
  job.micro_batch = static_cast<std::uint64_t>(options_.micro_batch);
  job.capabilities.shares = true;
  // Policy `accumulation` needs reports of steps whose batch has the size in the plan. Batches
  // loaded ahead still have the size of an earlier plan.
  job.capabilities.accumulation = options_.micro_batch > 0 && options_.prefetch == 0;
}

void ShareActuator::apply(const Plan& plan, RoundId) {
  shares_ = plan.shares;
  step_samples_ =
      plan.step_samples > 0 ? static_cast<std::int64_t>(plan.step_samples) : options_.global_batch;
}

ShareRequest ShareActuator::request(std::uint64_t cursor) const {
  return {cursor, step_samples_, options_.micro_batch, shares_, job_.rank(), job_.world_size()};
}

SampleSlice StepShare::part(std::uint64_t i) const {
  if (micro_batch == 0) return {0, slice.count};
  const std::int64_t first = static_cast<std::int64_t>(i) * micro_batch;
  return {first, std::min(micro_batch, slice.count - first)};
}

Result<StepShare> share_of(const SamplePlan& plan, const ShareRequest& request) {
  StepShare share;
  share.step = plan.batch_at(request.cursor, request.step_samples);
  share.micro_batch = request.micro_batch;
  const std::int64_t unit = std::max<std::int64_t>(1, request.micro_batch);
  const std::int64_t count = share.step.count;
  const auto counts = units_of_ranks(request, (count + unit - 1) / unit);
  if (!counts.ok()) return counts.status();
  const auto rank = static_cast<std::size_t>(request.rank.value());
  const SampleSlice mine = SamplePlan::slice(*counts, rank);
  const std::int64_t first = std::min(count, mine.first * unit);
  share.slice = {first, std::min(count, (mine.first + mine.count) * unit) - first};
  // Without a micro-batch, all samples of a rank are one micro-batch.
  std::vector<std::int64_t> batches = *counts;
  for (std::int64_t& n : batches) n = request.micro_batch == 0 ? std::min<std::int64_t>(n, 1) : n;
  const SampleSlice own = SamplePlan::slice(batches, rank);
  share.micro_batches =
      unsigned_of(std::accumulate(batches.begin(), batches.end(), std::int64_t{0}));
  share.most_on_a_rank = unsigned_of(*std::ranges::max_element(batches));
  share.first_micro_batch = unsigned_of(own.first);
  share.own_micro_batches = unsigned_of(own.count);
  return share;
}

namespace {

// Samples lie along dimension 0.
void check_rows(const Batch& batch) {
  for (const at::Tensor& tensor : {batch.inputs, batch.targets}) {
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) == batch.samples) continue;
    throw Error(failed_precondition("Dataset::get: expected tensors of ", batch.samples,
                                    " rows, as Batch::samples says, found one of shape ",
                                    c10::str(tensor.sizes())));
  }
}

}  // namespace

StepQueue::StepQueue(const Dataset& dataset, const SamplePlan& plan, std::size_t ahead,
                     c10::Device device)
    : dataset_(dataset), plan_(plan), ahead_(ahead), device_(device) {
  if (ahead_ == 0) return;
  prefetcher_.emplace(
      [&dataset, device](std::span<const std::int64_t> indices) {
        Batch batch = dataset.get(indices);
        batch.inputs = staged_for(batch.inputs, device);
        batch.targets = staged_for(batch.targets, device);
        return batch;
      },
      ahead_ + 1);
}

void StepQueue::fill(const ShareRequest& request) {
  while (planned_.size() < ahead_ + 1) {
    ShareRequest next = request;
    if (!planned_.empty()) next.cursor = planned_.back().share.step.next;
    const StepShare share = require(share_of(plan_, next));
    planned_.push_back({next.cursor, share});
    if (prefetcher_) prefetcher_->request(next.cursor, samples_of(plan_, share));
  }
}

Batch StepQueue::get(const Planned& planned) {
  Batch batch = prefetcher_ ? prefetcher_->take(planned.cursor)
                            : dataset_.get(samples_of(plan_, planned.share));
  const std::int64_t wanted = planned.share.slice.count;
  if (batch.samples == wanted) {
    check_rows(batch);
    batch.inputs = sent_to(batch.inputs, device_);
    batch.targets = sent_to(batch.targets, device_);
    return batch;
  }
  throw Error(failed_precondition(
      "Dataset::get: expected a batch of " + std::to_string(wanted) +
      " samples, one for each index, found Batch::samples = " + std::to_string(batch.samples)));
}

void StepQueue::forget() {
  planned_.clear();
  if (prefetcher_) prefetcher_->cancel();
}

const StepQueue::Step& StepQueue::take(const ShareRequest& request) {
  if (taken_cursor_ == request.cursor) return taken_;
  if (!planned_.empty() && planned_.front().cursor != request.cursor) forget();
  fill(request);
  taken_ = {planned_.front().share, get(planned_.front())};
  taken_cursor_ = request.cursor;
  planned_.pop_front();
  return taken_;
}

TrainingData::TrainingData(SessionState& state, const TrainerOptions& options,
                           TrainingPosition& position)
    : state_(state),
      options_(options),
      position_(position),
      shares_(state.actuators(), options, state.job()) {}

void TrainingData::open(const Dataset& dataset, c10::Device device) {
  constexpr const char* kAdvice = "give every rank the same data";
  const auto named = state_.job().world().name_calls("Trainer::steps");
  const auto size = static_cast<std::uint64_t>(dataset.size());
  check_equal(state_.job(), size, "a data set of the same size", kAdvice);
  check_resumed(
      position_.samples, size,
      "of " + std::to_string(position_.samples) + " samples, found one of " + std::to_string(size) +
          "; the save's position is valid only in the data set of the save: resume with that one");
  position_.samples = size;
  // Compares samples, too: the size alone would not detect another text of the same length.
  const std::uint64_t hash = hash_of_samples(dataset);
  check_equal(state_.job(), hash, "a data set with the same samples", kAdvice);
  if (hash != 0) {
    check_resumed(position_.data_hash, hash,
                  "found a data set of the same size with different samples; resume with the data "
                  "of the save");
  }
  position_.data_hash = hash;
  SamplePlanOptions plan;
  plan.size = dataset.size();
  plan.global_batch = options_.global_batch;
  plan.seed = state_.job().config().run.seed;
  queue_.emplace(dataset, require(SamplePlan::create(plan), Error::Scope::all_ranks),
                 options_.prefetch, device);
  const Status prefetch = queue_->prefetch_status();
  if (!prefetch.ok())
    state_.job().log().warning("batches are read in the training thread, without prefetching: " +
                               prefetch.message());
}

// `saved` is 0 if the save has no value.
void TrainingData::check_resumed(std::uint64_t saved, std::uint64_t found,
                                 const std::string& what) const {
  const bool is_first_after_resume = state_.job().config().checkpoint.resume && !queue_;
  if (!is_first_after_resume || saved == 0 || saved == found) return;
  throw Error(failed_precondition("resume: expected the data set of the save, " + what),
              Error::Scope::all_ranks);
}

}  // namespace cox::detail
