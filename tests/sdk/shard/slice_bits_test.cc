// Optimizers' operators give each element the same bits on slices as on the whole tensor, for all
// types and vector widths of LibTorch's kernels. Otherwise a sharded update would differ from a
// replicated one. ctest runs this file with the machine's widest vectors, avx2, and none.
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/sdk/same_bits.h"

#include <doctest/doctest.h>

namespace {

using at::Tensor;

// Values are the tensors of an update: weights, gradient, two moments.
struct Values {
  Tensor weights, gradient, first, second;

  Values part(std::int64_t begin, std::int64_t end) const {
    const auto cut = [&](const Tensor& t) { return t.narrow(0, begin, end - begin).clone(); };
    return {cut(weights), cut(gradient), cut(first), cut(second)};
  }
  Values copy() const { return part(0, weights.numel()); }
};

struct Update {
  const char* name;
  std::function<void(Values&)> run;
};

void fused_adamw(Values& v) {
  std::vector<Tensor> weights{v.weights}, gradients{v.gradient}, first{v.first}, second{v.second};
  std::vector<Tensor> steps{torch::tensor(3.0f)};
  at::_fused_adamw_(weights, gradients, first, second, {}, steps, 1e-2, 0.9, 0.99, 0.01, 1e-8,
                    false, false);
}

const std::vector<Update> kUpdates = {
    {"adamw",
     [](Values& v) {
       v.weights.mul_(1 - 1e-3);
       v.first.mul_(0.9).add_(v.gradient, 0.1);
       v.second.mul_(0.99).addcmul_(v.gradient, v.gradient, 0.01);
       const Tensor divisor = (v.second.sqrt() / 0.31).add_(1e-8);
       v.weights.addcdiv_(v.first, divisor, -1e-2);
     }},
    {"fused adamw", fused_adamw},
    {"momentum",
     [](Values& v) {
       v.gradient.add_(v.weights, 0.01);
       v.first.mul_(0.9).add_(v.gradient);
       v.weights.add_(v.first, -0.05);
     }},
    {"rmsprop",
     [](Values& v) {
       v.second.mul_(0.99).addcmul_(v.gradient, v.gradient, 0.01);
       v.first.mul_(0.9).addcdiv_(v.gradient, v.second.sqrt().add_(1e-8));
       v.weights.add_(v.first, -0.01);
     }},
    {"lion",
     [](Values& v) {
       v.weights.add_(v.first.lerp(v.gradient, 0.1).sign_(), -1e-3);
       v.first.lerp_(v.gradient, 0.01);
     }},
};

Values made(std::int64_t elements, at::ScalarType type) {
  const auto numbers = [&] { return torch::randn({elements}).to(type); };
  return {numbers(), numbers(), numbers(), numbers().abs()};
}

}  // namespace

TEST_SUITE("bits of slices") {
  TEST_CASE("updates give slices the bits that they give the whole") {
    constexpr std::int64_t kGrain = 4096;  // the default of shard.grain
    const int threads_before = at::get_num_threads();
    std::mt19937 random(17);
    torch::manual_seed(17);
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const int threads : {1, 2}) {
        at::set_num_threads(threads);
        for (int slice = 0; slice < 125; ++slice) {
          const Update& update = kUpdates[static_cast<std::size_t>(slice) % kUpdates.size()];
          const std::int64_t grains = 1 + static_cast<std::int64_t>(random() % 24);
          // For narrow types LibTorch computes a thread's last elements in another way than whole
          // vectors, so several threads give equal bits only for sizes that they divide evenly.
          const bool is_even = slice % 3 == 0 || (threads > 1 && at::elementSize(type) == 2);
          const std::int64_t elements =
              grains * kGrain + (is_even ? 0 : static_cast<std::int64_t>(random() % kGrain));
          const auto begin = static_cast<std::int64_t>(random() % grains) * kGrain;
          const std::int64_t end = slice % 2 == 0 ? elements : begin + kGrain;
          const Values before = made(elements, type);
          Values whole = before.copy();
          Values part = before.part(begin, end);
          update.run(whole);
          update.run(part);
          const Values expected = whole.part(begin, end);
          CAPTURE(std::string(update.name));
          CAPTURE(std::string(c10::toString(type)));
          CAPTURE(threads);
          CAPTURE(elements);
          CAPTURE(begin);
          CHECK(sdk_test::same_bits(part.weights, expected.weights));
          CHECK(sdk_test::same_bits(part.first, expected.first));
          CHECK(sdk_test::same_bits(part.second, expected.second));
        }
      }
    }
    at::set_num_threads(threads_before);
  }
}
