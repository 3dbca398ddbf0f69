// Shared parts of the tests of FP8 products: recipes, autocast, a linear product by definition in
// double from quantised values, and a counter of FP8 work.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "coxswain/precision.h"
#include "sdk/src/precision/fp8_operator.h"
#include "tests/sdk/precision/fp8_counts.h"

namespace fp8_test {

using namespace cox::detail;
using at::Tensor;
using cox::Fp8Granularity;
using cox::Fp8Scaling;

inline std::vector<Fp8Recipe> recipes() {
  return {{Fp8Scaling::current, Fp8Granularity::tensor, 16, 0},
          {Fp8Scaling::current, Fp8Granularity::row, 16, 1},
          {Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0},
          {Fp8Scaling::delayed, Fp8Granularity::row, 4, 2}};
}

inline std::shared_ptr<Fp8Block> block_of(const Fp8Recipe& recipe = {}) {
  return std::make_shared<Fp8Block>(recipe);
}

// Returns an input that is no parameter by our rule, because its history begins with an operation.
inline Tensor input(at::IntArrayRef sizes) {
  return at::randn(sizes);
}

// Returns the values after quantising with their own scale.
inline Tensor through(const Tensor& values, FloatFormat format, Fp8Granularity granularity,
                      std::uint32_t margin = 0) {
  const torch::NoGradGuard no_grad;
  const Tensor scale = current_scale(values, format, granularity, margin);
  return quantize_tensor(values, format, scale).operand.dequantized().to(at::kDouble);
}

// The result for x [M, K] and w [N, K], and the gradients, all by definition.
struct Expected {
  Tensor y;
  Tensor of_x;
  Tensor of_w;
};
inline Expected expected(const Tensor& x, const Tensor& w, const Tensor& gradient,
                         const Fp8Recipe& recipe) {
  // Delayed scaling uses a scale for the whole tensor in its first step.
  const Fp8Granularity granularity =
      recipe.scaling == Fp8Scaling::delayed ? Fp8Granularity::tensor : recipe.granularity;
  const Tensor xq = through(x, FloatFormat::e4m3, granularity, recipe.margin);
  const Tensor wq = through(w, FloatFormat::e4m3, recipe.granularity, recipe.margin);
  const Tensor gq = through(gradient, FloatFormat::e5m2, granularity, recipe.margin);
  return {at::mm(xq, wq.t()), at::mm(gq, wq), at::mm(gq.t(), xq)};
}

// Returns whether two results differ only by the order of addition and by `bits` of mantissa.
// Results on a device are bf16.
inline bool is_near(const Tensor& found, const Tensor& wanted, int bits = 20) {
  const Tensor error = (found.to(at::kDouble) - wanted.to(at::kDouble)).abs().max();
  const Tensor size = wanted.to(at::kDouble).abs().max();
  return error.item<double>() <= std::ldexp(size.item<double>(), -(found.is_cuda() ? 4 : bits));
}

// Runs the products of this thread in FP8 during its lifetime.
class Fp8Scope {
 public:
  explicit Fp8Scope(std::shared_ptr<Fp8Block> block)
      : listener_(std::move(block)), shown_({&listener_}) {}

 private:
  struct Listener final : OperatorListener {
    explicit Listener(std::shared_ptr<Fp8Block> block) : products(std::move(block)) {}
    std::optional<ProductFormat> product_format() const override {
      return ProductFormat{at::kBFloat16, &products};
    }
    mutable Fp8Products products;
  };
  Listener listener_;
  StreamScope shown_;
};

// Calls `compute` in a new scope. Returns how many values were quantised.
template <class Compute>
std::uint64_t quantized_in(const Compute& compute) {
  const auto block = block_of();
  const Fp8Scope scope(block);
  compute();
  return take_counts(block).sampled;
}

}  // namespace fp8_test
