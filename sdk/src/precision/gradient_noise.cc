#include "sdk/src/precision/gradient_noise.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/settings/settings.h"

namespace cox::detail {
namespace {

// SplitMix64: the same start on every rank and machine.
double fraction_of(std::uint64_t seed) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
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

}  // namespace

GradientNoise::GradientNoise(std::vector<NoiseBlock> blocks, NoiseSettings settings)
    : settings_(std::move(settings)) {
  for (const NoiseBlock& given : blocks) {
    Block& block = blocks_.emplace_back();
    if (!fits_pattern(settings_.sample_blocks, given.name)) continue;
    block.parts = spread(given, settings_.seed + blocks_.size());
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
  return !block.parts.empty() &&
         std::all_of(block.parts.begin(), block.parts.end(), [](const Part& part) {
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
      std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (!block.was_sampled) return;
  const double kept = settings_.decay;
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
  const double b = settings_.decay;
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

}  // namespace cox::detail
