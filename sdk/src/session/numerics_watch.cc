#include "sdk/src/session/numerics_watch.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "coordinator/core/settings/settings.h"
#include "sdk/src/precision/curvature.h"

namespace cox::detail {
namespace {

std::uint32_t saturated(std::uint64_t count) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(count, kMost));
}

// Parameters of each block, of nested blocks the innermost's.
std::vector<std::vector<at::Tensor>> parameters_by_block(const BlockRegistry& registry,
                                                         std::span<const at::Tensor> parameters) {
  std::vector<std::vector<at::Tensor>> of_block(registry.size());
  const std::vector<std::vector<BlockId>> owners = owners_of(registry, parameters);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].requires_grad()) continue;
    for (const BlockId block : owners[p]) of_block[block.value()].push_back(parameters[p]);
  }
  return of_block;
}

}  // namespace

void NumericsWatch::attach(BlockRegistry& registry, std::span<const at::Tensor> parameters,
                           at::Device device) {
  release();
  registry_ = &registry;
  health_.attach(registry, parameters);
  parameters_ = parameters_by_block(registry, parameters);
  const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device);
  std::vector<NoiseBlock> blocks;
  for (std::size_t b = 0; b < registry.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    blocks.push_back({registry.name(block), parameters_[b]});
    fp8_.push_back(std::make_shared<Fp8Block>(fp8_recipe(config_), shapes));
    registry.set_fp8(block, fp8_.back());
  }
  if (!wants_precision(config_)) return;
  noise_.emplace(std::move(blocks), NoiseSettings{.sample_every = config_.sample_every,
                                                  .sample_blocks = config_.sample_blocks});
}

void NumericsWatch::release() {
  if (registry_ != nullptr) health_.detach(*registry_);
  registry_ = nullptr;
  noise_.reset();
  parameters_.clear();
  fp8_.clear();
}

void NumericsWatch::begin_step(float scale) {
  if (!is_attached()) return;
  scale_ = scale;
  ++steps_;
  has_sampled_ = is_skipped_ = false;
  curvature_.clear();
  health_.begin_step(scale);
}

void NumericsWatch::forget() {
  for (const auto& fp8 : fp8_) fp8->drop_step();
}

void NumericsWatch::sample_gradients(double factor) {
  if (!wants_gradients()) return;
  noise_->sample(factor);
  has_sampled_ = true;
}

std::int64_t NumericsWatch::blame(std::span<const std::int64_t> nonfinite) {
  is_skipped_ = true;
  if (is_attached()) health_.parameter_gradients(nonfinite);
  return std::accumulate(nonfinite.begin(), nonfinite.end(), std::int64_t{0});
}

void NumericsWatch::probe_curvature(std::uint64_t step, torch::nn::Module& model,
                                    const std::function<at::Tensor()>& loss, RankId rank) {
  const std::uint32_t every = config_.curvature_every;
  if (!is_attached() || every == 0 || step % every != 0) return;
  std::vector<std::vector<at::Tensor>> groups;
  std::vector<std::size_t> blocks;
  for (std::size_t b = 0; b < parameters_.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    if (!fits_pattern(config_.sample_blocks, registry_->name(block))) continue;
    if (parameters_[b].empty()) continue;
    groups.push_back(parameters_[b]);
    blocks.push_back(b);
  }
  const auto values = detail::probe_curvature(model, loss, groups, {.seed = step});
  if (!values.ok()) {
    log_.on_change(LogLevel::warning, "curvature",
                   "curvature is not known: " + values.status().message());
    return;
  }
  curvature_.assign(registry_->size(), {});
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    curvature_[blocks[i]] = {std::fabs((*values)[i]), rank};
  }
}

void NumericsWatch::add_fp8(RankId rank) {
  for (std::size_t b = 0; b < fp8_.size(); ++b) {
    const Fp8Counts counts = fp8_[b]->take_counts();
    is_skipped_ ? fp8_[b]->drop_step() : fp8_[b]->end_step();
    if (counts.sampled == 0) continue;
    BlockEvidence seen;
    seen.sampled = saturated(counts.sampled);
    seen.underflow = saturated(counts.underflow);
    seen.saturated = saturated(counts.saturated);
    if (counts.activation_amax > 0) seen.activation = {counts.activation_amax, rank};
    if (counts.gradient_amax > 0) seen.gradient = {counts.gradient_amax / scale_, rank};
    merge_into(evidence_[b], seen);
  }
}

std::string NumericsWatch::blamed() const {
  using Where = HealthVerdict::Where;
  const bool is_block = verdict().where == Where::forward || verdict().where == Where::backward;
  return is_block && registry_ != nullptr ? registry_->name(*verdict().block) : std::string();
}

void NumericsWatch::collect(RankId rank) {
  const auto seen = health_.end_step(rank);
  evidence_.assign(seen.begin(), seen.end());
  evidence_.resize(registry_->size());
  add_fp8(rank);
  if (has_sampled_) noise_->fill(evidence_);
  for (std::size_t b = 0; b < curvature_.size(); ++b) evidence_[b].curvature = curvature_[b];
  for (BlockEvidence& block : evidence_) block = with_own_ratios(block, rank);
}

std::span<const BlockEvidence> NumericsWatch::end_step(RankId rank) noexcept try {
  if (!is_attached()) return {};
  collect(rank);
  return evidence_;
} catch (const std::exception& error) {
  log_.on_change(LogLevel::error, "numbers",
                 std::string("what blocks saw in a step is lost: ") + error.what());
  return {};
} catch (...) {
  return {};
}

}  // namespace cox::detail
