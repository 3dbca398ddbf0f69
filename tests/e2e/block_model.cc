#include "tests/e2e/block_model.h"

#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "tests/sdk/session/product_probe.h"

namespace e2e {

LayerImpl::LayerImpl(std::int64_t width)
    : in_(register_module("in", torch::nn::Linear(width, 2 * width))),
      out_(register_module("out", torch::nn::Linear(2 * width, width))) {}

at::Tensor LayerImpl::forward(const at::Tensor& x) {
  const at::Tensor wide = in_(x);
  if (at::GradMode::is_enabled()) {
    found = cox::test::format_of_products(in_->weight);
    const double ms = device_ms[static_cast<std::size_t>(found)];
    if (ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  }
  at::Tensor hidden = torch::dropout(torch::gelu(wide), 0.1, is_training());
  if (forward_factor != 1) hidden = hidden * forward_factor;
  if (backward_factor != 1 && hidden.requires_grad()) {
    hidden.register_hook([factor = backward_factor](const at::Tensor& g) { return g * factor; });
  }
  return x + out_(hidden);
}

StackImpl::StackImpl(std::size_t blocks, std::int64_t width)
    : widen_(register_buffer("widen", torch::randn({4, width}) / 2)),
      sum_(register_buffer("sum",
                           torch::randn({width, 1}) / std::sqrt(static_cast<double>(width)))) {
  for (std::size_t b = 0; b < blocks; ++b) {
    blocks_.push_back(register_module("block" + std::to_string(b), Layer(width)));
  }
}

at::Tensor StackImpl::forward(const at::Tensor& x) {
  at::Tensor y = x.matmul(widen_);
  for (Layer& block : blocks_) y = block(y);
  return y.matmul(sum_);
}

void StackImpl::inject(const std::vector<Injection>& all, int rank, std::uint64_t step) {
  for (auto& block : blocks_) block->forward_factor = block->backward_factor = 1;
  for (const Injection& one : all) {
    if (one.rank != rank || one.step != step) continue;
    LayerImpl& layer = *blocks_.at(one.block);
    (one.is_backward ? layer.backward_factor : layer.forward_factor) = one.factor;
  }
}

void StackImpl::set_device(const std::array<double, cox::kPrecisions>& ms, double times) {
  auto& device = blocks_.front()->device_ms;
  for (std::size_t p = 0; p < ms.size(); ++p) device[p] = times * ms[p];
}

double StackImpl::formats() const {
  double digits = 0;
  for (const auto& block : blocks_) digits = 10 * digits + 1 + static_cast<int>(block->found);
  return digits;
}

double checksum(const torch::nn::Module& model) {
  std::uint64_t hash = 1469598103934665603ull;  // FNV-1a, of words
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor words = parameter.detach().contiguous().view(torch::kInt);
    const auto* word = words.const_data_ptr<int>();
    for (std::int64_t i = 0; i < words.numel(); ++i) {
      hash = (hash ^ static_cast<std::uint32_t>(word[i])) * 1099511628211ull;
    }
  }
  return static_cast<double>(hash >> 12);
}

}  // namespace e2e
