// A model of blocks ("block0", "block1", ...) for the end-to-end tests of numerics. On request a
// layer multiplies a value, or its gradient, until it overflows. Each layer records the format of
// its products, and sleeps like a device on which narrower formats are faster. Training thread
// only.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <vector>

#include "coxswain/coxswain.h"
#include "tests/e2e/trainer_options.h"

namespace e2e {

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(std::int64_t width);
  at::Tensor forward(const at::Tensor& x);

  float forward_factor = 1;
  float backward_factor = 1;
  std::array<double, cox::kPrecisions> device_ms{};
  cox::Precision found = cox::Precision::fp32;

 private:
  torch::nn::Linear in_, out_;
};
TORCH_MODULE(Layer);

class StackImpl : public torch::nn::Module {
 public:
  StackImpl(std::size_t blocks, std::int64_t width);
  at::Tensor forward(const at::Tensor& x);

  // Injects this rank's faults for the step that begins.
  void inject(const std::vector<Injection>& all, int rank, std::uint64_t step);
  // Sets the device time of the first layer from now on, by format.
  void set_device(const std::array<double, cox::kPrecisions>& ms, double times);
  cox::Precision first_format() const { return blocks_.front()->found; }
  // Returns the formats of the last forward pass, a digit a layer (1 = fp32 ... 4 = fp8).
  double formats() const;

 private:
  at::Tensor widen_, sum_;  // fixed: only the blocks are trained
  std::vector<Layer> blocks_;
};
TORCH_MODULE(Stack);

// Returns a number that changes with any bit of any parameter; exact as a double.
double checksum(const torch::nn::Module& model);

}  // namespace e2e
