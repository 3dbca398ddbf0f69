// GradientNoise estimates the noise over the signal of each block's gradient, from moving averages
// over a fixed sample of its elements, at most kElements of them, evenly spread over the block's
// parameters from a seeded start. With g a sampled element of one step's unscaled gradient:
//
//   m <- b m + (1-b) g,  v <- b v + (1-b) g^2,  each divided by 1 - b^n after n samples;
//   q = sum of the squared weights of the n samples = (1-b)/(1+b) * (1+b^n)/(1-b^n);
//   variance = (v - m^2) / (1 - q),  signal = (m^2 - q v) / (1 - q);
//   ratio = sum of variance / sum of signal, over the elements.
//
// E[m^2] = mean^2 + q variance, so both are free of the window's bias for gradients that are
// independent from step to step; drift of the mean within the window counts as noise. The ratio is
// the trace of the gradient's covariance over its squared norm, the "simple noise scale" of
// McCandlish et al. (arXiv:1812.06162, section 2.2) in units of the batch in use. No unit of the
// loss is left in it: a factor 2^k changes no bit of it. A signal lost in noise gives kLargest.
//
// Cost: on the CPU one read of memory a sampled element, 6 us a block in a step that samples, 60
// where no gradient is in a cache, nothing in other steps; on a device one gather a parameter and
// one copy to the host for all blocks.
// A session owns it; the thread that trains uses it. It does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/evidence.h"

namespace cox::detail {

struct NoiseSettings {
  std::uint32_t sample_every = 8;   // steps; 0 = never
  std::string sample_blocks = "*";  // names, as fits_pattern reads them
  double decay = 0.9;               // b, in (0, 1)
  std::uint64_t seed = 0;
};

// A block's name and its parameters that get gradients.
struct NoiseBlock {
  std::string name;
  std::vector<at::Tensor> parameters;
};

class GradientNoise {
 public:
  static constexpr std::int64_t kElements = 1024;
  static constexpr std::uint32_t kEnough = 8;  // samples before there is a ratio
  static constexpr float kLargest = 1e6F;

  GradientNoise(std::vector<NoiseBlock> blocks, NoiseSettings settings);

  bool is_due(std::uint64_t step) const;
  // Reads the .grad of the sampled elements and divides it by `scale`. A block with a gradient that
  // is missing, or not finite in the sample, is left out this time.
  void sample(double scale);
  // Returns nothing for a block that is not sampled, or has fewer than kEnough samples.
  std::optional<float> ratio(std::size_t block) const;
  // Writes the ratio of each block that was part of the last sample. REQUIRES: an entry a block.
  void fill(std::span<BlockEvidence> evidence) const;

 private:
  struct Part {
    at::Tensor parameter;
    std::vector<std::int64_t> positions;  // flat
    at::Tensor on_device;                 // the same, where the parameter is; undefined on the CPU
  };
  struct Block {
    std::vector<Part> parts;
    std::vector<double> mean;
    std::vector<double> square;
    std::uint32_t samples = 0;
    bool was_sampled = false;
    std::size_t first = 0;  // of its values among those of a step
  };
  static bool has_gradients(const Block& block);
  static std::vector<Part> spread(const NoiseBlock& block, std::uint64_t seed);
  void take(Block& block, std::span<const double> values);

  NoiseSettings settings_;
  std::vector<Block> blocks_;
};

}  // namespace cox::detail
