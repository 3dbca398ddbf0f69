#include "sdk/src/training/model_changes.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/clip.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

StepBuffers::StepBuffers(SessionState& state, torch::nn::Module& model) : state_(state) {
  std::vector<at::Tensor> apart;
  if (state_.job().config().reduction.reproducible) {
    statistics_.emplace(model);
    apart = statistics_->buffers();
  }
  for (const at::Tensor& buffer : model.buffers()) {
    if (!buffer.defined()) continue;
    all_.push_back(buffer);
    const bool is_apart =
        std::ranges::any_of(apart, [&](const at::Tensor& other) { return buffer.is_same(other); });
    if (!is_apart) kept_.push_back({buffer, {}});
  }
}

std::uint64_t StepBuffers::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : all_) sum += static_cast<std::uint64_t>(buffer._version());
  return sum;
}

void StepBuffers::begin_step() {
  if (statistics_) statistics_->begin_step();
  const std::uint64_t now = versions();
  if (seen_ == now) return;
  for (Kept& kept : kept_) kept.before = kept.buffer.detach().clone();
  seen_ = now;
}

void StepBuffers::put_back() {
  if (statistics_) statistics_->put_back();
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::equal(kept.buffer, kept.before)) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::put_back_nonfinite() {
  if (statistics_) statistics_->put_back();
  const torch::NoGradGuard no_grad;
  for (Kept& kept : kept_) {
    if (!at::isfinite(kept.buffer).all().item<bool>()) kept.buffer.copy_(kept.before);
  }
}

void StepBuffers::fold(StepScope& step, const StepShare& share) {
  if (!statistics_) return;
  const PhaseScope phase = step.phase(Phase::communication);
  const Membership& job = state_.job();
  require(statistics_->fold(
              job.data(), job.world().wait_policy(), [this] { state_.control().plane().pump(); },
              share.micro_batches, share.most_on_a_rank),
          "running statistics");
}

ModelUpdate::ModelUpdate(SessionState& state, torch::nn::Module& model,
                         std::unique_ptr<OptimizerPort> optimizer, MasterWeights* masters,
                         const TrainerOptions& options)
    : state_(state),
      model_(model),
      parameters_(each_once(model.parameters())),
      masters_(masters),
      updated_(masters == nullptr ? parameters_ : masters->tensors()),
      optimizer_(std::move(optimizer)),
      options_(options),
      added_(state.actuators(), *this) {}

void ModelUpdate::check_optimizer() const {
  const auto is_updated = [this](const at::Tensor& held) {
    return std::ranges::any_of(updated_, [&](const at::Tensor& p) { return p.is_same(held); });
  };
  const bool holds_some = std::ranges::any_of(optimizer_->parameters(), is_updated);
  const std::string expected =
      masters_ == nullptr
          ? "the model's parameters, or of some of them, found an optimizer without any; make the "
            "optimizer from model.parameters(), or pass its MasterWeights to the Trainer"
          : "the masters' tensors, found an optimizer without any; make the optimizer from "
            "masters.tensors()";
  state_.job().agree(
      holds_some ? ok_status() : invalid_argument("Trainer: expected an optimizer of " + expected));
  check_equal(state_.job(), optimizer_->options_hash(), "the same options of the optimizer",
              "give every rank the same learning rate, betas and other options");
}

EqualBits ModelUpdate::equal_bits() const {
  Fnv1a64 hash;
  for (std::size_t group = 0; group < optimizer_->groups(); ++group)
    hash.add(std::bit_cast<std::uint64_t>(optimizer_->learning_rate(group)));
  return {"the learning rate", hash.value()};
}

std::string ModelUpdate::explain_difference(transport::Communicator& ranks) {
  constexpr std::size_t kMostNamed = 8;
  const auto all =
      gather_values(ranks, optimizer_->groups() > 0 ? optimizer_->learning_rate(0) : 0.0);
  if (!all.ok()) return {};
  std::string text;
  for (std::size_t rank = 0; rank < std::min(all->size(), kMostNamed); ++rank)
    text += concat(rank == 0 ? "" : ", ", general((*all)[rank], 6), " on rank ", rank);
  return text + (all->size() > kMostNamed ? ", ..." : "");
}

void ModelUpdate::apply(StepScope& step, const ReductionOutcome& outcome) {
  const PhaseScope phase = step.phase(Phase::optimizer);
  if (options_.learning_rate) step.log("lr", optimizer_->learning_rate(0));
  if (outcome.finite) {
    if (masters_ != nullptr) masters_->take_gradients();
    if (options_.clip_norm > 0)
      clip_by_global_norm(updated_, options_.clip_norm, {.known_norm = outcome.gradient_norm});
    optimizer_->step();
    if (masters_ != nullptr) masters_->give_weights();
    if (!std::exchange(is_shown_, true)) {
      state_.control().telemetry().show_held({.optimizer = optimizer_->state_bytes()});
      state_.control().telemetry().show_last_step(options_.steps);
    }
  }
  drop_gradients();
}

// Resets every parameter, because the optimizer may hold only a part of the model.
void ModelUpdate::drop_gradients() {
  optimizer_->zero_grad();
  for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
}

}  // namespace cox::detail
