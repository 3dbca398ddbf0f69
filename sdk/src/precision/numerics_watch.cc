#include "sdk/src/precision/numerics_watch.h"

#include <ATen/SequenceNumber.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "coordinator/core/split_mix.h"
#include "coordinator/core/text.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/block_rules.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/precision/fp8_kernels.h"
#include "sdk/src/precision/fp8_operator.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// Returns a number in [0, 1) that is the same on every rank and machine.
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

// SampledValues collects elements of many gradients in order. It reads what lies in the host's
// memory at once; all else is left where it is, for one copy.
class SampledValues {
 public:
  std::size_t size() const { return values.size(); }

  void add(const at::Tensor& gradient, std::span<const std::int64_t> positions,
           const at::Tensor& on_device) {
    if (can_read_directly(gradient)) {
      const float* data = gradient.const_data_ptr<float>();
      for (const std::int64_t position : positions) values.push_back(data[position]);
      return;
    }
    const at::Tensor where = on_device.defined() ? on_device : at::tensor(positions_of(positions));
    gathered.push_back(gradient.detach().reshape({-1}).index_select(0, where).to(at::kDouble));
    holes.push_back({values.size(), positions.size()});
    values.resize(values.size() + positions.size());
  }

  void add_zeros(std::size_t count) { values.resize(values.size() + count); }

  std::vector<double> values;
  std::vector<at::Tensor> gathered;
  std::vector<SampleHole> holes;

 private:
  static at::ArrayRef<std::int64_t> positions_of(std::span<const std::int64_t> positions) {
    return {positions.data(), positions.size()};
  }
};

metrics::OverflowPass pass_of(HealthVerdict::Where where) {
  using Where = HealthVerdict::Where;
  if (where == Where::parameters) return metrics::OverflowPass::parameters;
  return where == Where::forward ? metrics::OverflowPass::forward : metrics::OverflowPass::backward;
}

bool may_use_fp8(const PrecisionConfig& config) {
  const bool is_forced = std::ranges::any_of(
      config.force, [](const FormatRule& rule) { return rule.value == Precision::fp8; });
  return is_forced || config.format.value_or(Precision::fp8) == Precision::fp8;
}

// Ahead of the steps, because it takes a second or two.
void compile_fp8_kernels(c10::Device device, Log& log) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto kernels = Fp8Kernels::of(device, type);
    if (kernels.ok()) continue;
    log.on_change(LogLevel::warning, "fp8 kernels",
                  concat("fp8: LibTorch's operations quantise, which takes several times as long "
                         "as kernels would: ",
                         kernels.status().text()));
  }
}

}  // namespace

GradientNoise::GradientNoise(std::vector<NoiseBlock> blocks, NoiseSettings settings)
    : settings_(std::move(settings)) {
  for (const NoiseBlock& given : blocks) {
    Block& block = blocks_.emplace_back();
    if (!fits_pattern(settings_.sample_blocks, given.name)) continue;
    block.parts = spread(given, blocks_.size());
    std::size_t elements = 0;
    for (const Part& part : block.parts) elements += part.positions.size();
    block.mean.assign(elements, 0.0);
    block.square.assign(elements, 0.0);
  }
}

// Positions in the parameters laid end to end, equal distances apart.
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

bool GradientNoise::is_due(std::uint64_t step) const {
  return settings_.sample_every != 0 && step % settings_.sample_every == 0;
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
  const torch::NoGradGuard no_grad;
  take_sampled();  // what came since receive() would be lost
  SampledValues sampled;
  for (Block& block : blocks_) {
    block.was_sampled = has_gradients(block);
    block.first = sampled.size();
    for (const Part& part : block.parts) {
      if (!block.was_sampled) continue;
      if (part.had_gradient) {
        sampled.add(part.parameter.grad(), part.positions, part.on_device);
      } else {
        sampled.add_zeros(part.positions.size());
      }
    }
  }
  sampled_.emplace(Sampled{std::move(sampled.values), std::move(sampled.holes), {}, scale});
  if (!sampled.gathered.empty()) sampled_->from_device = HostCopy(at::cat(sampled.gathered));
  take_sampled();
}

void GradientNoise::take_sampled() {
  if (!sampled_ || !sampled_->from_device.has_come()) return;
  std::vector<double>& values = sampled_->values;
  const at::Tensor& came = sampled_->from_device.tensor();
  const double* from = came.defined() ? came.const_data_ptr<double>() : nullptr;
  for (const SampleHole& hole : sampled_->holes) {
    std::copy_n(from, hole.size, values.begin() + static_cast<std::ptrdiff_t>(hole.place));
    from += hole.size;
  }
  for (double& value : values) value /= sampled_->scale;
  for (Block& block : blocks_) {
    if (block.was_sampled) take(block, std::span(values).subspan(block.first, block.mean.size()));
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

// What the operator has read before the parameter it reads as part of the new visit.
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
  if (node->sequence_nr() >= visit.first_node) return;  // made in it
  awaits_data_ = false;
  inputs_added_ += ledger_->input(visit.call, tensor);
  const auto later = std::ranges::upper_bound(visits_, node->sequence_nr(), {}, &Visit::first_node);
  if (later != visits_.begin()) ledger_->output(std::prev(later)->call, tensor);
}

void VisitHealth::leave() noexcept {
  if (block_) ledger_->end_call(visits_.back().call);
  block_.reset();
}

Fp8Reading::Fp8Reading(const Fp8Blocks& blocks) {
  std::vector<at::Tensor> pending;
  for (const auto& block : blocks) {
    Part part{block, block->take_waiting()};
    for (const Fp8Waiting& one : part.waiting) pending.push_back(one.seen.pending);
    if (!part.waiting.empty()) parts_.push_back(std::move(part));
  }
  if (!pending.empty()) copy_ = HostCopy(at::stack(pending));
}

bool Fp8Reading::finish() {
  if (parts_.empty()) return true;
  if (!copy_.has_come()) return false;
  const double* numbers = copy_.tensor().const_data_ptr<double>();
  for (const Part& part : std::exchange(parts_, {})) {
    for (const Fp8Waiting& one : part.waiting) {
      part.block->add(one, completed(one.seen, numbers));
      numbers += 3;
    }
  }
  copy_ = HostCopy();
  return true;
}

void Fp8Reading::wait() const {
  if (!parts_.empty()) copy_.wait();
}

void NumericsWatch::attach(torch::nn::Module& model) {
  device_ = device_of(model);
}

Status NumericsWatch::check(LoopKind loop) {
  if (loop == LoopKind::reducing && !is_watching()) watch({});
  const bool samples = wants_precision(config_) && config_.sample_every > 0 && blocks_.size() > 0;
  return samples ? check_fits("precision.sample_blocks", config_.sample_blocks,
                              config_.sample_blocks, blocks_.names())
                 : ok_status();
}

void NumericsWatch::watch_adopted(std::vector<NoiseBlock> blocks) {
  if (!formats_.is_wanted()) return;
  release();
  std::vector<at::Tensor> parameters;
  std::vector<std::vector<BlockId>> owners;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const at::Tensor& parameter : blocks[b].parameters) {
      parameters.push_back(parameter);
      owners.push_back({BlockId(static_cast<BlockId::rep>(b))});
    }
  }
  watches_adopted_ = true;
  watch_visits(std::move(blocks), parameters, std::move(owners));
}

void NumericsWatch::watch(std::span<const at::Tensor> parameters) {
  const BlockMap* map = blocks_.followed();
  if (map == nullptr) return;
  release();
  std::vector<NoiseBlock> blocks;
  for (const std::string& name : blocks_.names()) blocks.push_back({name, {}});
  for (std::size_t b = 0; b < map->size(); ++b)
    blocks[b].parameters = map->parameters(BlockId(static_cast<BlockId::rep>(b)));
  std::vector<std::vector<BlockId>> owners;
  for (const at::Tensor& parameter : parameters) {
    const auto owner = map->owner(storage_impl(parameter));
    owners.push_back(owner ? std::vector{*owner} : std::vector<BlockId>());
  }
  watch_visits(std::move(blocks), parameters, std::move(owners));
}

void NumericsWatch::watch_visits(std::vector<NoiseBlock> blocks,
                                 std::span<const at::Tensor> parameters,
                                 std::vector<std::vector<BlockId>> owners) {
  visits_.watch(health_.watch(blocks.size(), parameters, std::move(owners)));
  VisitWatch& visits = *blocks_.visits();
  visits.observe(&visits_);
  const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device_);
  if (shapes && may_use_fp8(config_)) compile_fp8_kernels(device_, log_);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    fp8_.push_back(std::make_shared<Fp8Block>(fp8_recipe(config_), shapes));
    visits.parts().steering.set_fp8(BlockId(static_cast<BlockId::rep>(b)),
                                    std::make_shared<Fp8Products>(fp8_.back()));
  }
  for (NoiseBlock& block : blocks)
    std::erase_if(block.parameters, [](const at::Tensor& p) { return !p.requires_grad(); });
  name(std::move(blocks));
}

void NumericsWatch::name(std::vector<NoiseBlock> blocks) {
  for (const NoiseBlock& block : blocks) names_.push_back(block.name);
  if (!wants_precision(config_)) return;
  noise_.emplace(std::move(blocks), NoiseSettings{.sample_every = config_.sample_every,
                                                  .sample_blocks = config_.sample_blocks});
}

void NumericsWatch::release() {
  if (VisitWatch* visits = blocks_.visits()) visits->observe(nullptr);
  health_.release();
  visits_ = {};
  watches_adopted_ = false;
  names_.clear();
  noise_.reset();
  fp8_.clear();
  fp8_reading_ = {};
}

void NumericsWatch::look_at_gradients(StepId step) {
  if (!watches_adopted_) return;
  if (wants_gradients() && !has_sampled_) sample_gradients(1);
  if (is_skipped_) return;
  looked_at_ = step;
  note_looks(health_.look_at_gradients(step));
}

void NumericsWatch::note_looks(bool found_trouble) {
  if (!found_trouble) return;
  is_skipped_ = true;
  skipped_step_ = looked_at_;
}

void NumericsWatch::begin_step() {
  if (!is_watching()) return;
  scale_ = formats_.scale();
  ++steps_;
  has_sampled_ = is_skipped_ = false;
  health_.begin_step(scale_);
  visits_.begin_step();
}

void NumericsWatch::count_fp8(Fp8Count counting) {
  for (const auto& fp8 : fp8_) fp8->count(counting);
}

void NumericsWatch::forget_run() {
  for (const auto& fp8 : fp8_) fp8->drop_step();
}

void NumericsWatch::sample_gradients(double factor) {
  if (!wants_gradients()) return;
  noise_->sample(factor);
  has_sampled_ = true;
}

std::int64_t NumericsWatch::blame(std::span<const std::int64_t> nonfinite, StepId step) {
  is_skipped_ = true;
  skipped_step_ = step;
  // When an adopted step closes, the optimizer has spread what was not finite.
  const bool is_too_late = watches_adopted_ && nonfinite.empty();
  if (is_watching() && !is_too_late) health_.parameter_gradients(nonfinite);
  return std::accumulate(nonfinite.begin(), nonfinite.end(), std::int64_t{0});
}

// Nobody waits for what a device has counted, and figures come a step late, unless they scale the
// next step. While some are on their way those of a step are passed over.
void NumericsWatch::read_fp8() {
  const bool is_free = fp8_reading_.finish();
  if (is_skipped_) return;  // its figures are dropped
  Fp8Reading fresh(fp8_);
  if (config_.fp8_scaling == Fp8Scaling::delayed) {
    fresh.wait();
    while (!fresh.finish()) {
    }
  } else if (is_free) {
    fp8_reading_ = std::move(fresh);
  }
}

void NumericsWatch::add_fp8() {
  read_fp8();
  for (std::size_t b = 0; b < fp8_.size(); ++b) {
    if (is_skipped_) {
      fp8_[b]->drop_step();
      continue;
    }
    const Fp8Counts counts = fp8_[b]->take_counts();
    fp8_[b]->end_step();
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
  const bool is_block = verdict().where != Where::nothing && verdict().where != Where::outside;
  return is_block && is_watching() ? names_[verdict().block->value()] : std::string();
}

// Says once for each time that it begins: the block whose results were bad first may be innocent.
void NumericsWatch::tell_parameters() {
  if (verdict().where != HealthVerdict::Where::parameters) {
    spoiled_since_.reset();
    return;
  }
  if (spoiled_since_) return;
  spoiled_since_ = skipped_step_;
  log_.error(concat("parameters of block ", blamed(), " have been non-finite since before step ",
                    skipped_step_, " (", verdict().values,
                    " values); no step can mend them: resume from a save of before it"));
}

void NumericsWatch::collect() {
  note_looks(health_.settle_looks());
  const auto seen = health_.end_step(rank_);
  if (health_.late_step()) skipped_step_ = *health_.late_step();
  evidence_.assign(seen.begin(), seen.end());
  evidence_.resize(names_.size());
  tell_parameters();
  add_fp8();
  if (noise_ && noise_->receive()) noise_->fill(evidence_);
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
