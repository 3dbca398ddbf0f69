#include "sdk/src/precision/numerics_watch.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "metrics/step_row.h"

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

void fill_row(metrics::StepRow& row, std::span<const BlockEvidence> evidence,
              const HealthVerdict& verdict, const std::string& blamed) {
  using Where = HealthVerdict::Where;
  if (verdict.where != Where::nothing) {
    const bool is_forward = verdict.where == Where::forward;
    row.set_overflow(blamed,
                     is_forward ? metrics::OverflowPass::forward : metrics::OverflowPass::backward);
  }
  double noise = 0;
  std::uint32_t noisy = 0;
  BlockEvidence all;
  for (const BlockEvidence& block : evidence) {
    merge_into(all, block);
    noise += block.noise_sum;
    noisy += block.noise_count;
  }
  row.sampled_values = all.sampled;
  row.underflow_values = all.underflow;
  row.saturated_values = all.saturated;
  if (noisy > 0) row.gradient_noise = static_cast<float>(noise / noisy);
}

void NumericsWatch::attach(torch::nn::Module& model) {
  device_ = device_of(model);
}

Status NumericsWatch::check(LoopKind loop) {
  if (loop == LoopKind::reducing && !is_watching()) watch({});
  return ok_status();
}

void NumericsWatch::watch(std::span<const at::Tensor> parameters) {
  if (blocks_.registry() == nullptr) return;
  release();
  registry_ = blocks_.registry();
  BlockRegistry& registry = *registry_;
  health_.attach(registry, parameters);
  parameters_ = parameters_by_block(registry, parameters);
  const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device_);
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

void NumericsWatch::begin_step() {
  if (!is_watching()) return;
  scale_ = formats_.scale();
  ++steps_;
  has_sampled_ = is_skipped_ = false;
  health_.begin_step(scale_);
}

void NumericsWatch::forget_run() {
  for (const auto& fp8 : fp8_) fp8->drop_step();
}

void NumericsWatch::sample_gradients(double factor) {
  if (!wants_gradients()) return;
  noise_->sample(factor);
  has_sampled_ = true;
}

std::int64_t NumericsWatch::blame(std::span<const std::int64_t> nonfinite) {
  is_skipped_ = true;
  if (is_watching()) health_.parameter_gradients(nonfinite);
  return std::accumulate(nonfinite.begin(), nonfinite.end(), std::int64_t{0});
}

void NumericsWatch::add_fp8() {
  for (std::size_t b = 0; b < fp8_.size(); ++b) {
    const Fp8Counts counts = fp8_[b]->take_counts();
    is_skipped_ ? fp8_[b]->drop_step() : fp8_[b]->end_step();
    if (counts.sampled == 0) continue;
    BlockEvidence seen;
    seen.sampled = saturated(counts.sampled);
    seen.underflow = saturated(counts.underflow);
    seen.saturated = saturated(counts.saturated);
    if (counts.activation_amax > 0) seen.activation = {counts.activation_amax, rank_};
    if (counts.gradient_amax > 0) seen.gradient = {counts.gradient_amax / scale_, rank_};
    merge_into(evidence_[b], seen);
  }
}

std::string NumericsWatch::blamed() const {
  using Where = HealthVerdict::Where;
  const bool is_block = verdict().where == Where::forward || verdict().where == Where::backward;
  return is_block && registry_ != nullptr ? registry_->name(*verdict().block) : std::string();
}

void NumericsWatch::collect() {
  const auto seen = health_.end_step(rank_);
  evidence_.assign(seen.begin(), seen.end());
  evidence_.resize(registry_->size());
  add_fp8();
  if (has_sampled_) noise_->fill(evidence_);
  for (BlockEvidence& block : evidence_) block = with_own_ratios(block, rank_);
}

void NumericsWatch::end_step(const StepEnd&, StepOutput& output) noexcept try {
  evidence_.clear();
  if (!is_watching()) return;
  collect();
  output.evidence = evidence_;
  if (output.row != nullptr) fill_row(*output.row, evidence_, verdict(), blamed());
} catch (const std::exception& error) {
  evidence_.clear();
  log_.on_change(LogLevel::error, "numerics",
                 std::string("what blocks saw in a step is lost: ") + error.what());
} catch (...) {
  evidence_.clear();
}

// Histories of delayed FP8 scaling; every rank has its own.
const SavedRow* NumericsWatch::saved_row() const {
  static constexpr SavedRow kRow{"fp8", "FP8 scaling"};
  return is_watching() && config_.fp8_scaling == Fp8Scaling::delayed ? &kRow : nullptr;
}

}  // namespace cox::detail
