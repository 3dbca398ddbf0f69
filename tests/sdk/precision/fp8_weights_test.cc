// The cache of quantised weights: what it must notice, and what it must not confuse.
#include <torch/torch.h>

#include <vector>

#include "sdk/src/precision/fp8_block.h"

#include <doctest/doctest.h>

namespace {

using namespace cox::detail;
using at::Tensor;

// That the cache gives what quantising now would give.
bool is_current(Fp8Weights& weights, const Tensor& weight) {
  const Fp8Operand found = weights.get(weight, 0);
  Fp8Weights fresh(cox::Fp8Granularity::tensor);
  const Fp8Operand now = fresh.get(weight, 0);
  return at::equal(found.dequantized(), now.dequantized());
}

struct Cache {
  Fp8Weights weights{cox::Fp8Granularity::tensor};
  Tensor weight = at::randn({8, 6}).requires_grad_();
  torch::NoGradGuard no_grad;
};

}  // namespace

TEST_SUITE("sdk.precision.fp8_weights") {
  TEST_CASE_FIXTURE(Cache, "a weight is quantised once, however often it is asked for") {
    for (int i = 0; i < 5; ++i) CHECK(is_current(weights, weight));
    CHECK(is_current(weights, weight.t().t()));  // the same memory, seen the same way
    CHECK(weights.quantized() == 1);
    CHECK(weights.size() == 1);
  }

  TEST_CASE_FIXTURE(Cache, "a step of an optimizer is noticed, and the old codes go") {
    for (int step = 0; step < 3; ++step) {
      CHECK(is_current(weights, weight));
      weight.sub_(at::ones_like(weight), 0.5);
    }
    Tensor gradient = at::ones_like(weight);
    weight.mutable_grad() = gradient;
    torch::optim::SGD({weight}, 0.7).step();
    CHECK(is_current(weights, weight));
    weight.t().mul_(3);  // through a view
    CHECK(is_current(weights, weight));
    CHECK(weights.quantized() == 5);
    CHECK(weights.size() == 1);
  }

  TEST_CASE_FIXTURE(Cache, "two views of one weight are two entries, and do not mix") {
    const Tensor first = weight.slice(0, 0, 4);
    const Tensor second = weight.slice(0, 4, 8);
    const Tensor transposed = weight.t();
    for (int i = 0; i < 2; ++i) {
      CHECK(is_current(weights, weight));
      CHECK(is_current(weights, first));
      CHECK(is_current(weights, second));
      CHECK(is_current(weights, transposed));
    }
    CHECK(weights.quantized() == 4);
    weight.add_(1);
    CHECK(is_current(weights, first));
    CHECK(is_current(weights, second));
  }

  TEST_CASE_FIXTURE(Cache, "storage that was swapped or resized is noticed") {
    CHECK(is_current(weights, weight));
    weight.set_data(at::randn({8, 6}));
    CHECK(is_current(weights, weight));
    Tensor plain = at::randn({8, 6});
    CHECK(is_current(weights, plain));
    plain.set_(at::randn({4, 12}));
    CHECK(is_current(weights, plain));
    plain.resize_({16, 12}).fill_(2);
    CHECK(is_current(weights, plain));
  }

  TEST_CASE_FIXTURE(Cache, "memory that was freed and handed out again is another weight") {
    std::vector<float> memory(64 * 64);
    for (int i = 0; i < 50; ++i) {
      {
        const Tensor first = at::from_blob(memory.data(), {64, 64});
        first.fill_(1.0 + i);
        CHECK(is_current(weights, first));
      }
      const Tensor second = at::from_blob(memory.data(), {64, 64});
      second.fill_(100.0 + i);
      CHECK(is_current(weights, second));
    }
    CHECK(weights.size() <= 2);
  }

  TEST_CASE_FIXTURE(Cache, "what no counter shows needs clear()") {
    CHECK(is_current(weights, weight));
    weight.mutable_data_ptr<float>()[0] = 100;
    CHECK_FALSE(is_current(weights, weight));
    weights.clear();
    CHECK(is_current(weights, weight));
  }

  TEST_CASE_FIXTURE(Cache, "there are never more entries than the limit") {
    std::vector<Tensor> many;
    for (std::size_t i = 0; i < 3 * Fp8Weights::kMost; ++i) {
      many.push_back(at::randn({4, 4}));
      CHECK(is_current(weights, many.back()));
      CHECK(weights.size() <= Fp8Weights::kMost);
    }
    for (const Tensor& one : many) CHECK(is_current(weights, one));
  }
}
