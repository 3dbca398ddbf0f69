// A model of blocks ("block0", "block1", ...) for the end-to-end tests of
// numerics. On request a layer multiplies a value of its own, or that value's gradient, so that it
// overflows. Each layer notes the format that its products run in, and waits as long as a device
// would compute that is faster the narrower the format. Training thread only.
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

  // What goes wrong on this rank in the step that begins.
  void inject(const std::vector<Injection>& all, int rank, std::uint64_t step);
  // How long the device of the first layer takes from now on, by format.
  void set_device(const std::array<double, cox::kPrecisions>& ms, double times);
  cox::Precision first_format() const { return blocks_.front()->found; }
  // The formats found in the last forward pass, a digit a layer (1 = fp32 ... 4 = fp8).
  double formats() const;

 private:
  at::Tensor widen_, sum_;  // fixed: what is trained are the blocks
  std::vector<Layer> blocks_;
};
TORCH_MODULE(Stack);

// A number that differs when any bit of any parameter does; it is exact as a double.
double checksum(const torch::nn::Module& model);

}  // namespace e2e
