#include "sdk/src/precision/numerics_watch.h"

#include <ATen/SequenceNumber.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "coordinator/core/split_mix.h"
#include "coordinator/core/text.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/block_rules.h"
#include "sdk/src/precision/fp8_watch.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// Returns a number in [0, 1), equal on every rank and machine.
double fraction_of(std::uint64_t seed) {
  return static_cast<double>(split_mix(seed) >> 11) * 0x1p-53;
}

bool can_read_directly(const at::Tensor& gradient) {
  return gradient.is_cpu() && gradient.layout() == at::kStrided && gradient.is_contiguous() &&
         gradient.scalar_type() == at::kFloat;
}

bool is_readable(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kStrided;
}

metrics::OverflowPass pass_of(HealthVerdict::Where where) {
  using Where = HealthVerdict::Where;
  if (where == Where::parameters) return metrics::OverflowPass::parameters;
  return where == Where::forward ? metrics::OverflowPass::forward : metrics::OverflowPass::backward;
}

}  // namespace

void SampledValues::add(const at::Tensor& gradient, std::span<const std::int64_t> positions,
                        const at::Tensor& on_device) {
  if (can_read_directly(gradient)) {
    const float* data = gradient.const_data_ptr<float>();
    for (const std::int64_t position : positions) values_.push_back(data[position]);
    return;
  }
  const at::ArrayRef<std::int64_t> here(positions.data(), positions.size());
  const at::Tensor where = on_device.defined() ? on_device : at::tensor(here);
  gathered_.push_back(gradient.detach().reshape({-1}).index_select(0, where).to(at::kDouble));
  holes_.push_back({values_.size(), positions.size()});
  add_zeros(positions.size());
}

void SampledValues::set_out() {
  if (!gathered_.empty()) from_device_ = HostCopy(at::cat(gathered_));
  gathered_.clear();
}

bool SampledValues::finish() {
  if (!from_device_.has_come()) return false;
  const at::Tensor& came = from_device_.tensor();
  const double* from = came.defined() ? came.const_data_ptr<double>() : nullptr;
  for (const Hole& hole : holes_) {
    std::copy_n(from, hole.size, values_.begin() + static_cast<std::ptrdiff_t>(hole.place));
    from += hole.size;
  }
  return true;
}

GradientNoise::GradientNoise(const std::vector<NoiseBlock>& blocks, const PrecisionConfig& config)
    : every_steps_(config.sample_every) {
  for (const NoiseBlock& given : blocks) {
    Block& block = blocks_.emplace_back();
    if (!fits_pattern(config.sample_blocks, given.name)) continue;
    block.parts = spread(given, blocks_.size());
    std::size_t elements = 0;
    for (const Part& part : block.parts) elements += part.positions.size();
    block.mean.assign(elements, 0.0);
    block.square.assign(elements, 0.0);
  }
}

// Returns evenly spaced positions in the parameters laid end to end.
std::vector<GradientNoise::Part> GradientNoise::spread(const NoiseBlock& block,
                                                       std::uint64_t seed) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : block.parameters) total += parameter.numel();
  const std::int64_t count = std::min(total, kElements);
  const double distance =
      static_cast<double>(total) / static_cast<double>(std::max<std::int64_t>(1, count));
  const double start = fraction_of(seed) * distance;
  std::vector<Part> parts;
  std::int64_t sampled = 0;
  std::int64_t first = 0;
  for (const at::Tensor& parameter : block.parameters) {
    Part part{parameter, {}, {}};
    for (; sampled < count; ++sampled) {
      const auto at = static_cast<std::int64_t>(start + static_cast<double>(sampled) * distance);
      if (at >= first + parameter.numel()) break;
      part.positions.push_back(at - first);
    }
    first += parameter.numel();
    if (part.positions.empty()) continue;
    if (!parameter.is_cpu()) part.on_device = at::tensor(part.positions).to(parameter.device());
    parts.push_back(std::move(part));
  }
  return parts;
}

void GradientNoise::begin_step() {
  ++step_;
  has_sampled_ = false;
}

bool GradientNoise::has_gradients(Block& block) {
  bool has_some = false;
  bool misses_one = false;
  for (Part& part : block.parts) {
    const bool has_one = is_readable(part.parameter.grad());
    has_some = has_some || has_one;
    misses_one = misses_one || (!has_one && part.had_gradient);
    part.had_gradient = part.had_gradient || has_one;
  }
  return has_some && !misses_one;
}

void GradientNoise::sample(double scale) {
  if (!is_due()) return;
  has_sampled_ = true;
  const torch::NoGradGuard no_grad;
  take_sampled();  // otherwise values since receive() would be lost
  SampledValues& gradients = sampled_.emplace(Sampled{{}, scale}).gradients;
  for (Block& block : blocks_) {
    block.was_sampled = has_gradients(block);
    block.first = gradients.size();
    for (const Part& part : block.parts) {
      if (!block.was_sampled) continue;
      if (part.had_gradient) {
        gradients.add(part.parameter.grad(), part.positions, part.on_device);
      } else {
        gradients.add_zeros(part.positions.size());
      }
    }
  }
  gradients.set_out();
  take_sampled();
}

void GradientNoise::take_sampled() {
  if (!sampled_ || !sampled_->gradients.finish()) return;
  const std::span<double> values = sampled_->gradients.values();
  for (double& value : values) value /= sampled_->scale;
  for (Block& block : blocks_) {
    if (block.was_sampled) take(block, values.subspan(block.first, block.mean.size()));
  }
  sampled_.reset();
  is_new_ = true;
}

bool GradientNoise::receive() {
  take_sampled();
  return std::exchange(is_new_, false);
}

void GradientNoise::take(Block& block, std::span<const double> values) {
  block.was_sampled =
      std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  if (!block.was_sampled) return;
  const double kept = kDecay;
  const double fresh = 1 - kept;
  for (std::size_t i = 0; i < values.size(); ++i) {
    block.mean[i] = kept * block.mean[i] + fresh * values[i];
    block.square[i] = kept * block.square[i] + fresh * values[i] * values[i];
  }
  ++block.samples;
}

std::optional<float> GradientNoise::ratio(std::size_t index) const {
  const Block& block = blocks_[index];
  if (block.samples < kEnough) return std::nullopt;
  const double b = kDecay;
  const double faded = std::pow(b, block.samples);
  const double whole = 1 - faded;
  const double q = (1 - b) / (1 + b) * (1 + faded) / whole;
  double variance = 0;
  double signal = 0;
  double power = 0;
  for (std::size_t i = 0; i < block.mean.size(); ++i) {
    const double mean = block.mean[i] / whole;
    const double square = block.square[i] / whole;
    variance += square - mean * mean;
    signal += mean * mean - q * square;
    power += square;
  }
  if (power == 0) return std::nullopt;
  variance = std::max(variance, 0.0);
  if (signal * kLargest <= variance) return kLargest;
  return static_cast<float>(variance / signal);
}

void GradientNoise::fill(std::span<BlockEvidence> evidence) const {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (!blocks_[b].was_sampled) continue;
    const auto found = ratio(b);
    if (!found) continue;
    evidence[b].noise_sum += *found;
    ++evidence[b].noise_count;
  }
}

void fill_row(metrics::StepRow& row, std::span<const BlockEvidence> evidence,
              const HealthVerdict& verdict, const std::string& blamed) {
  using Where = HealthVerdict::Where;
  if (verdict.where != Where::nothing) row.set_overflow(blamed, pass_of(verdict.where));
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

void VisitHealth::begin_step() {
  visits_.clear();
  block_.reset();
  awaits_data_ = false;
}

void VisitHealth::parameter(BlockId block, std::optional<ProductFormat> format) noexcept try {
  if (!ledger_->is_open()) return;
  if (block_ != block) enter(block);
  if (format && format->type == at::kHalf) ledger_->computes_in_fp16(visits_.back().call);
  const std::uint64_t reader = operators_shown();
  if (parameter_read_by_ == reader) return;
  parameter_read_by_ = reader;
  if (operands_read_by_ != reader) return;
  for (at::TensorImpl* operand : operands_) {
    look(at::Tensor(c10::intrusive_ptr<at::TensorImpl>::reclaim_copy(operand)));
  }
} catch (...) {
}

void VisitHealth::operand(const at::Tensor& tensor) noexcept try {
  if (!tensor.is_floating_point() || tensor.dim() == 0 || !ledger_->is_open()) return;
  const std::uint64_t reader = operators_shown();
  if (operands_read_by_ != reader) {
    operands_.clear();
    inputs_added_ = 0;
  }
  operands_read_by_ = reader;
  operands_.push_back(tensor.unsafeGetTensorImpl());
  if (block_) look(tensor);
} catch (...) {
}

// Tensors read before the parameter by the same operator belong to the new visit.
void VisitHealth::enter(BlockId block) {
  if (block_) {
    if (operands_read_by_ == operators_shown())
      ledger_->take_back(visits_.back().call, inputs_added_);
    ledger_->end_call(visits_.back().call);
  }
  visits_.push_back({ledger_->begin_call(block), at::sequence_number::peek()});
  block_ = block;
  awaits_data_ = true;
}

void VisitHealth::look(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  const Visit& visit = visits_.back();
  if (node == nullptr) {
    if (awaits_data_ && parameter_read_by_ == operators_shown())
      static_cast<void>(ledger_->input(visit.call, tensor));
    awaits_data_ = awaits_data_ && parameter_read_by_ != operators_shown();
    return;
  }
  if (node->sequence_nr() >= visit.first_node) return;  // made in the visit
  awaits_data_ = false;
  inputs_added_ += ledger_->input(visit.call, tensor);
  const auto later = std::ranges::upper_bound(visits_, node->sequence_nr(), {}, &Visit::first_node);
  if (later != visits_.begin()) ledger_->output(std::prev(later)->call, tensor);
}

void VisitHealth::leave() noexcept {
  if (block_) ledger_->end_call(visits_.back().call);
  block_.reset();
}

Status NumericsWatch::check(LoopKind loop) {
  if (loop == LoopKind::reducing && !health_.is_watching()) watch({});
  const bool samples = wants_precision(config_) && config_.sample_every > 0 && blocks_.size() > 0;
  return samples ? check_fits("precision.sample_blocks", config_.sample_blocks,
                              config_.sample_blocks, blocks_.names())
                 : ok_status();
}

void NumericsWatch::watch_adopted(std::vector<NoiseBlock> blocks) {
  std::vector<at::Tensor> parameters;
  std::vector<std::optional<BlockId>> owners;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const at::Tensor& parameter : blocks[b].parameters) {
      parameters.push_back(parameter);
      owners.emplace_back(static_cast<BlockId::rep>(b));
    }
  }
  watch_visits(std::move(blocks), parameters, std::move(owners));
}

void NumericsWatch::watch(std::span<const at::Tensor> parameters) {
  const BlockMap* map = blocks_.followed();
  if (map == nullptr) return;
  std::vector<NoiseBlock> blocks;
  for (const std::string& name : blocks_.names()) blocks.push_back({name, {}});
  for (std::size_t b = 0; b < map->size(); ++b)
    blocks[b].parameters = map->parameters(BlockId(static_cast<BlockId::rep>(b)));
  std::vector<std::optional<BlockId>> owners;
  for (const at::Tensor& parameter : parameters)
    owners.push_back(map->owner(storage_impl(parameter)));
  watch_visits(std::move(blocks), parameters, std::move(owners));
}

void NumericsWatch::watch_visits(std::vector<NoiseBlock> blocks,
                                 std::span<const at::Tensor> parameters,
                                 std::vector<std::optional<BlockId>> owners) {
  release();
  visits_.watch(health_.watch(blocks.size(), parameters, std::move(owners)));
  blocks_.visits()->observe(&visits_);
  fp8_.equip(blocks_.visits()->parts());
  if (!wants_precision(config_)) return;
  for (NoiseBlock& block : blocks)
    std::erase_if(block.parameters, [](const at::Tensor& p) { return !p.requires_grad(); });
  noise_ = GradientNoise(blocks, config_);
}

void NumericsWatch::release() {
  if (VisitWatch* visits = blocks_.visits()) visits->observe(nullptr);
  health_.release();
  visits_ = {};
  noise_ = {};
  fp8_.release();
}

void NumericsWatch::look_at_gradients(StepId step) {
  if (!noise_.has_sampled()) noise_.sample(1);
  health_.look_at_gradients(step);
}

void NumericsWatch::begin_step() {
  if (!health_.is_watching()) return;
  noise_.begin_step();
  health_.begin_step(loss_scale_.factor());
  visits_.begin_step();
}

std::string NumericsWatch::blamed() const {
  using Where = HealthVerdict::Where;
  const HealthVerdict& verdict = health_.verdict();
  const bool is_block = verdict.where != Where::nothing && verdict.where != Where::outside;
  return is_block && health_.is_watching() ? blocks_.names()[verdict.block->value()]
                                           : std::string();
}

// Logs once for each beginning: the first block with bad results may be innocent.
void NumericsWatch::tell_parameters() {
  const HealthVerdict& verdict = health_.verdict();
  if (verdict.where != HealthVerdict::Where::parameters) {
    spoiled_since_.reset();
    return;
  }
  if (spoiled_since_) return;
  spoiled_since_ = health_.wrong_step();
  log_.error(
      concat("parameters of block ", blamed(), " have been non-finite since before step ",
             *spoiled_since_, " (", verdict.values,
             " values); later steps cannot repair them: resume from a save before that step"));
}

void NumericsWatch::collect() {
  const auto seen = health_.end_step(rank_);
  evidence_.assign(seen.begin(), seen.end());
  evidence_.resize(blocks_.size());
  tell_parameters();
  if (health_.goes_wrong()) {
    fp8_.skip_step();
  } else {
    fp8_.end_step(health_.scale(), evidence_);
  }
  if (noise_.receive()) noise_.fill(evidence_);
  for (BlockEvidence& block : evidence_) block = with_own_ratios(block, rank_);
}

void NumericsWatch::end_step(const StepEnd&, StepOutput& output) noexcept try {
  if (!health_.is_watching()) return;
  collect();
  output.evidence = evidence_;
  if (output.row != nullptr) fill_row(*output.row, evidence_, health_.verdict(), blamed());
} catch (const std::exception& error) {
  log_.on_change(LogLevel::error, "numerics",
                 std::string("statistics of blocks of one step are lost: ") + error.what());
} catch (...) {
}

}  // namespace cox::detail
