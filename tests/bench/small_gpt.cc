#include "tests/bench/small_gpt.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "coxswain/clip.h"

namespace cox::bench {

RandomBytes::RandomBytes(std::int64_t samples) {
  torch::manual_seed(5);
  tokens_ = torch::randint(256, {samples, kLength + 1}, at::kLong);
}

Batch RandomBytes::get(std::span<const std::int64_t> indices) const {
  const auto rows = torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()));
  const at::Tensor picked = tokens_.index_select(0, rows);
  return {picked.narrow(1, 0, kLength).contiguous(), picked.narrow(1, 1, kLength).contiguous(),
          static_cast<std::int64_t>(indices.size())};
}

Trained make_trained() {
  torch::manual_seed(1);
  gpt2::Gpt2 model(gpt2::Config{});
  AdamW optimizer(model->parameters(), {.lr = 1e-4});
  return {model, std::move(optimizer)};
}

gpt2::Gpt2 twin_of(const gpt2::Gpt2& model) {
  gpt2::Gpt2 twin(gpt2::Config{});
  const auto from = model->parameters();
  auto to = twin->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].set_data(from[i].data());
  return twin;
}

PlainLoop::PlainLoop(Trained& trained, gpt2::Gpt2 twin, const Dataset& dataset,
                     const StepWork& work, std::unique_ptr<Averaging> averaging)
    : trained_(trained),
      twin_(std::move(twin)),
      dataset_(dataset),
      work_(work),
      averaging_(std::move(averaging)) {
  from_ = twin_->parameters();
  to_ = trained_.model->parameters();
  order_.resize(static_cast<std::size_t>(dataset.size()));
  std::iota(order_.begin(), order_.end(), 0);
  std::shuffle(order_.begin(), order_.end(), std::mt19937_64(work.order_seed));
}

void PlainLoop::hand_over_gradients() {
  for (std::size_t i = 0; i < to_.size(); ++i) {
    to_[i].mutable_grad() = std::move(from_[i].mutable_grad());
  }
}

void PlainLoop::clip(std::optional<double> known_norm) {
  if (work_.clip_norm <= 0) return;
  clip_by_global_norm(to_, work_.clip_norm, {.known_norm = known_norm});
}

void PlainLoop::step() {
  const auto count = static_cast<std::size_t>(work_.sequences);
  const auto weight = static_cast<double>(work_.sequences);
  const Batch batch = dataset_.get(std::span<const std::int64_t>(order_).subspan(next_, count));
  next_ = (next_ + count) % (order_.size() - count);
  const at::Tensor loss = twin_->loss(batch.inputs, batch.targets);
  averaging_ ? averaging_->backward(loss, weight) : loss.backward();
  const double value = loss.item<double>();
  std::optional<double> norm;
  if (averaging_) norm = averaging_->average(value, weight);
  hand_over_gradients();
  clip(norm);
  trained_.optimizer.step();
  trained_.optimizer.zero_grad();
}

}  // namespace cox::bench
