#include "coxswain/tile.h"

#include <torch/torch.h>

#include <limits>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/tensor_memory.h"

#include <doctest/doctest.h>

namespace {

using at::Tensor;

Tensor feed_forward(const Tensor& x, const Tensor& up, const Tensor& down) {
  return at::gelu(x.matmul(up)).matmul(down);
}

struct Inputs {
  explicit Inputs(std::int64_t rows = 37, std::int64_t width = 8, std::int64_t classes = 50) {
    torch::manual_seed(2);
    hidden = torch::randn({rows, width}).requires_grad_();
    weight = torch::randn({classes, width}).requires_grad_();
    targets = torch::randint(classes, {rows});
  }
  Tensor hidden, weight, targets;
};

Tensor untiled(const Inputs& in, std::int64_t ignored = -100, double smoothing = 0) {
  return at::cross_entropy_loss(in.hidden.matmul(in.weight.t()), in.targets, {},
                                at::Reduction::Mean, ignored, smoothing);
}

// Returns |a - b| relative to a sum of absolute terms, in units of float's eps.
double distance(const Tensor& a, const Tensor& b, const Tensor& absolute_sum) {
  const Tensor units = (a - b).abs() / (absolute_sum * std::numeric_limits<float>::epsilon());
  return units.max().item<double>();
}

}  // namespace

TEST_SUITE("sdk.memory.tile") {
  TEST_CASE("near-equal parts cover the dimension, the longer ones first") {
    const auto lengths = [](const Tensor& x, std::int64_t dim, std::int64_t n) {
      std::vector<std::int64_t> seen;
      const Tensor same = cox::tile(
          [&](const Tensor& part) {
            seen.push_back(part.size(dim));
            return part;
          },
          x, dim, n);
      CHECK(torch::equal(same, x));
      return seen;
    };
    using Lengths = std::vector<std::int64_t>;
    const Tensor x = torch::arange(20).view({2, 10});
    CHECK(lengths(x, 1, 4) == Lengths{3, 3, 2, 2});
    CHECK(lengths(x, 0, 9) == Lengths{1, 1});
    CHECK(lengths(torch::empty({0, 3}), 0, 2) == Lengths{0});
  }

  TEST_CASE("a function of rows gives the untiled result, and gradients within rounding") {
    Inputs in;
    const Tensor up = torch::randn({8, 32}).requires_grad_();
    const Tensor down = torch::randn({32, 8}).requires_grad_();
    const Tensor whole = feed_forward(in.hidden, up, down);
    const auto expected = torch::autograd::grad({whole.sum()}, {in.hidden, up, down});
    for (const std::int64_t n : {1, 2, 5, 37, 100}) {
      CAPTURE(n);
      const Tensor tiled = cox::tile(
          [&](const Tensor& rows) { return feed_forward(rows, up, down); }, in.hidden, 0, n);
      const auto found = torch::autograd::grad({tiled.sum()}, {in.hidden, up, down});
      CHECK(torch::allclose(tiled, whole, 1e-4, 1e-4));
      for (int i = 0; i < 3; ++i) CHECK(torch::allclose(found[i], expected[i], 1e-4, 1e-4));
    }
  }

  TEST_CASE("cross-entropy from hidden states is the untiled mean, ignored targets and all") {
    Inputs in;
    in.targets[3] = 7;
    for (const std::int64_t ignored : {std::int64_t{-100}, std::int64_t{7}}) {
      for (const double smoothing : {0.0, 0.1}) {
        const Tensor whole = untiled(in, ignored, smoothing);
        const auto expected = torch::autograd::grad({whole}, {in.hidden, in.weight});
        for (const std::int64_t n : {1, 3, 37}) {
          CAPTURE(n);
          const Tensor tiled = cox::tiled_cross_entropy(
              in.hidden, in.weight, in.targets, n,
              {.ignore_index = ignored, .label_smoothing = smoothing, .bias = {}});
          const auto found = torch::autograd::grad({tiled}, {in.hidden, in.weight});
          CHECK(torch::allclose(tiled, whole, 1e-6, 1e-6));
          CHECK(torch::allclose(found[0], expected[0], 1e-5, 1e-7));
          CHECK(torch::allclose(found[1], expected[1], 1e-5, 1e-7));
        }
      }
    }
  }

  TEST_CASE("the distance to the untiled loss is a few roundings of the sum of absolute terms") {
    for (const std::int64_t n : {2, 8, 64}) {
      const Inputs in(512, 16, 97);
      const Tensor whole = untiled(in);
      const Tensor tiled = cox::tiled_cross_entropy(in.hidden, in.weight, in.targets, n);
      const auto expected = torch::autograd::grad({whole}, {in.weight})[0];
      const auto found = torch::autograd::grad({tiled}, {in.weight})[0];
      const Tensor logits = in.hidden.matmul(in.weight.t()).detach().requires_grad_();
      const Tensor mean = at::cross_entropy_loss(logits, in.targets);
      const Tensor slope = torch::autograd::grad({mean}, {logits})[0];
      const Tensor terms = slope.abs().t().matmul(in.hidden.detach().abs());
      const double loss_units = distance(tiled, whole, whole.detach());
      const double weight_units = distance(found, expected, terms);
      MESSAGE(n << " tiles: loss " << loss_units << " eps, weight gradient " << weight_units
                << " eps of the sum of absolute terms");
      CHECK(loss_units <= static_cast<double>(n) + 8);
      CHECK(weight_units <= static_cast<double>(n) + 8);
    }
  }

  TEST_CASE("the logits exist for one tile of rows at a time") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    const Inputs in(256, 8, 1000);
    const std::int64_t logits = 256 * 1000 * 4;
    const cox::detail::TensorMemory memory(in.weight.device());
    const auto peak = [&](const auto& loss) {
      const std::int64_t base = memory.count().live_bytes;
      memory.reset_peak();
      loss().backward();
      return memory.count().peak_bytes - base;
    };
    const auto whole = peak([&] { return untiled(in); });
    const auto tiled =
        peak([&] { return cox::tiled_cross_entropy(in.hidden, in.weight, in.targets, 16); });
    MESSAGE("peak above entry: untiled " << whole << ", 16 tiles " << tiled);
    CHECK(whole >= 2 * logits);
    CHECK(tiled < logits / 2);
  }

  TEST_CASE("all targets ignored give NaN, as torch does") {
    Inputs in;
    const Tensor loss =
        cox::tiled_cross_entropy(in.hidden, in.weight, torch::full_like(in.targets, -100), 2);
    CHECK(std::isnan(loss.item<float>()));
  }

  TEST_CASE("what cannot be tiled is refused with a message") {
    Inputs in;
    const auto same = [](const Tensor& x) { return x; };
    CHECK_THROWS_AS((void)cox::tile(same, in.hidden, 0, 0), cox::Error);
    CHECK_THROWS_AS((void)cox::tile(same, in.hidden, 2, 2), cox::Error);
    CHECK_THROWS_AS((void)cox::tile(same, Tensor(), 0, 2), cox::Error);
    CHECK_THROWS_AS((void)cox::tiled_cross_entropy(in.hidden, in.weight.t(), in.targets, 2),
                    cox::Error);
  }

  TEST_CASE("an input that is changed before a tile is computed again is an error") {
    const Inputs in;
    const Tensor hidden = in.hidden * 1;
    const Tensor loss = cox::tiled_cross_entropy(hidden, in.weight, in.targets, 2);
    hidden.detach().add_(1);
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("tiled_cross_entropy"), cox::Error);
  }
}
