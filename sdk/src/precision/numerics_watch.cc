#include "sdk/src/precision/numerics_watch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>

#include "coordinator/core/settings/settings.h"
#include "coxswain/detail/run_context.h"
#include "coxswain/precision.h"
#include "metrics/step_row.h"
#include "sdk/src/blocks/storage.h"
#include "sdk/src/device/split_mix.h"
#include "sdk/src/precision/execution_state.h"

namespace cox::detail {
namespace {

// The same start on every rank and machine.
double fraction_of(std::uint64_t seed) {
  return static_cast<double>(split_mix(seed) >> 11) * 0x1p-53;
}

bool can_read_directly(const at::Tensor& gradient) {
  return gradient.is_cpu() && gradient.layout() == at::kStrided && gradient.is_contiguous() &&
         gradient.scalar_type() == at::kFloat;
}

// Elements of many gradients in order. What lies in the host's memory is read at once, all else
// with one copy.
class SampledValues {
 public:
  std::size_t size() const { return values_.size(); }

  void add(const at::Tensor& gradient, std::span<const std::int64_t> positions,
           const at::Tensor& on_device) {
    if (can_read_directly(gradient)) {
      const float* data = gradient.const_data_ptr<float>();
      for (const std::int64_t position : positions) values_.push_back(data[position]);
      return;
    }
    const at::Tensor where = on_device.defined() ? on_device : at::tensor(positions_of(positions));
    gathered_.push_back(gradient.detach().reshape({-1}).index_select(0, where).to(at::kDouble));
    holes_.push_back(values_.size());
    values_.resize(values_.size() + positions.size());
  }

  std::vector<double> read() {
    if (gathered_.empty()) return std::move(values_);
    const at::Tensor all = at::cat(gathered_).to(at::kCPU);
    const double* from = all.const_data_ptr<double>();
    for (std::size_t g = 0; g < gathered_.size(); ++g) {
      const auto size = gathered_[g].numel();
      std::copy_n(from, size, values_.begin() + static_cast<std::ptrdiff_t>(holes_[g]));
      from += size;
    }
    return std::move(values_);
  }

 private:
  static at::ArrayRef<std::int64_t> positions_of(std::span<const std::int64_t> positions) {
    return {positions.data(), positions.size()};
  }

  std::vector<double> values_;
  std::vector<at::Tensor> gathered_;
  std::vector<std::size_t> holes_;
};

using Tensors = std::vector<at::Tensor>;

// All that a probe puts in force, and puts back: what decides the bits of a computation, buffers,
// and blocks that count as running again, so that nothing acts on them and nobody watches.
class ProbeScope {
 public:
  explicit ProbeScope(torch::nn::Module& model)
      : buffers_(BufferCopies(model.buffers())),
        execution_(capture_state(model)),
        context_({nullptr, MemoryAction::keep, true, true, nullptr, true}),
        running_(context_) {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }

 private:
  BufferScope buffers_;
  StateScope execution_;
  AttentionScope attention_{AttentionBackend::math};
  NoCastCache no_cast_cache_;
  RunContext context_;
  ContextScope running_;
};

at::Tensor dot(const Tensors& a, const Tensors& b) {
  at::Tensor sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor part = (a[i].to(at::kDouble) * b[i].to(at::kDouble)).sum();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

Tensors start_of(const Tensors& group, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  Tensors start;
  for (const at::Tensor& parameter : group) {
    const auto options = at::TensorOptions().dtype(at::kFloat);
    start.push_back(at::randn(parameter.sizes(), generator, options)
                        .to(parameter.device(), parameter.scalar_type()));
  }
  return start;
}

void scale(Tensors& vector, const at::Tensor& factor) {
  for (at::Tensor& part : vector) part.mul_(factor.to(part.device(), part.scalar_type()));
}

// The gradient of a group as a function of its parameters, to be differentiated along a vector.
class Hessian {
 public:
  // Requires: as many gradients as parameters, undefined where there is none.
  Hessian(const Tensors& parameters, const Tensors& gradients) : parameters_(parameters) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !gradients[i].requires_grad()) continue;
      gradients_.push_back(gradients[i]);
      indices_.push_back(i);
    }
  }

  bool is_zero() const { return gradients_.empty(); }

  Tensors times(const Tensors& vector) const {
    Tensors along;
    for (const std::size_t i : indices_) along.push_back(vector[i]);
    Tensors product = torch::autograd::grad(gradients_, parameters_, along, /*retain_graph=*/true,
                                            /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < product.size(); ++i) {
      if (!product[i].defined()) product[i] = at::zeros_like(parameters_[i]);
    }
    return product;
  }

 private:
  Tensors parameters_;
  Tensors gradients_;
  std::vector<std::size_t> indices_;
};

// v of length 1; the eigenvalue of H is v.Hv, the next v is Hv / |Hv|.
float largest_eigenvalue(const Hessian& hessian, Tensors v, int iterations) {
  const torch::NoGradGuard no_grad;
  if (hessian.is_zero()) return 0;
  scale(v, dot(v, v).rsqrt());
  double value = 0;
  for (int i = 0; i < iterations; ++i) {
    Tensors next = hessian.times(v);
    const at::Tensor length = dot(next, next).sqrt();
    const at::Tensor read = at::stack({dot(v, next), length}).to(at::kCPU);
    value = read[0].item<double>();
    if (read[1].item<double>() == 0) return 0;
    scale(next, length.reciprocal());
    v = std::move(next);
  }
  return static_cast<float>(value);
}

Status check_loss(const at::Tensor& loss) {
  const bool is_scalar = loss.defined() && loss.numel() == 1 && loss.requires_grad();
  if (is_scalar && std::isfinite(loss.item<double>())) return ok_status();
  return invalid_argument(
      std::string("curvature: expected a finite scalar loss that depends on parameters, found ") +
      (!is_scalar ? "another tensor" : "one that is not finite"));
}

Result<std::vector<float>> probe(const std::function<at::Tensor()>& loss_of,
                                 std::span<const Tensors> groups, const CurvatureOptions& options) {
  Tensors parameters;
  for (const Tensors& group : groups) {
    parameters.insert(parameters.end(), group.begin(), group.end());
  }
  const at::Tensor loss = loss_of();
  if (Status status = check_loss(loss); !status.ok()) return status;
  if (parameters.empty()) return std::vector<float>(groups.size());
  const Tensors gradients = torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true,
                                                  /*create_graph=*/true, /*allow_unused=*/true);
  std::vector<float> values;
  auto first = gradients.begin();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto last = first + static_cast<std::ptrdiff_t>(groups[g].size());
    const Hessian hessian(groups[g], Tensors(first, last));
    values.push_back(
        largest_eigenvalue(hessian, start_of(groups[g], options.seed + g), options.iterations));
    first = last;
  }
  return values;
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

bool GradientNoise::has_gradients(const Block& block) {
  return !block.parts.empty() && std::ranges::all_of(block.parts, [](const Part& part) {
    const at::Tensor& gradient = part.parameter.grad();
    return gradient.defined() && gradient.layout() == at::kStrided;
  });
}

void GradientNoise::sample(double scale) {
  const torch::NoGradGuard no_grad;
  SampledValues sampled;
  for (Block& block : blocks_) {
    block.was_sampled = has_gradients(block);
    block.first = sampled.size();
    for (const Part& part : block.parts) {
      if (block.was_sampled) sampled.add(part.parameter.grad(), part.positions, part.on_device);
    }
  }
  std::vector<double> values = sampled.read();
  for (double& value : values) value /= scale;
  for (Block& block : blocks_) {
    if (block.was_sampled) take(block, std::span(values).subspan(block.first, block.mean.size()));
  }
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

Result<std::vector<float>> probe_curvature(torch::nn::Module& model,
                                           const std::function<at::Tensor()>& loss,
                                           std::span<const Tensors> groups,
                                           const CurvatureOptions& options) try {
  if (options.iterations < 1) {
    return invalid_argument("curvature: expected at least 1 iteration, found " +
                            std::to_string(options.iterations));
  }
  const ProbeScope scope(model);
  return probe(loss, groups, options);
} catch (const std::exception& error) {
  const std::string what = error.what();  // torch appends its backtrace
  return failed_precondition("curvature: the probe failed: " + what.substr(0, what.find('\n')) +
                             "; a model whose operations have no second derivative cannot be "
                             "probed (precision.curvature_every = 0)");
}

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
  if (all.curvature.rank.value() >= 0) row.curvature = all.curvature.value;
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
  curvature_.clear();
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

void NumericsWatch::probe_curvature(std::uint64_t step, torch::nn::Module& model,
                                    const std::function<at::Tensor()>& loss) {
  const std::uint32_t every = config_.curvature_every;
  if (!is_watching() || every == 0 || step % every != 0) return;
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
    curvature_[blocks[i]] = {std::fabs((*values)[i]), rank_};
  }
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
  for (std::size_t b = 0; b < curvature_.size(); ++b) evidence_[b].curvature = curvature_[b];
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
