// Products with a weight in layers and in all of torch's forms: values, gradients, counts and
// scales.
#include "fp8_support.h"

#include <doctest/doctest.h>

namespace {

using namespace fp8_test;

// Checks a Linear layer and its gradients in FP8 against the definition.
void check_linear(const Fp8Recipe& recipe, at::IntArrayRef sizes, bool with_bias) {
  CAPTURE(sizes.size());
  CAPTURE(with_bias);
  at::manual_seed(7);
  torch::nn::Linear layer(torch::nn::LinearOptions(sizes.back(), 5).bias(with_bias));
  const Tensor leaf = input(sizes).requires_grad_();
  const Tensor x = leaf * 1;
  const auto block = block_of(recipe);
  Tensor y;
  {
    const Fp8Scope scope(block);
    y = layer->forward(x);
  }
  CHECK((y.scalar_type() == (y.is_cuda() ? at::kBFloat16 : at::kFloat)));
  const Tensor gradient = at::randn(y.sizes()).to(y.scalar_type());
  y.backward(gradient);

  const Tensor rows = x.detach().reshape({-1, sizes.back()});
  const Expected wanted = expected(rows, layer->weight.detach(), gradient.reshape({-1, 5}), recipe);
  const Tensor bias = with_bias ? layer->bias.detach() : at::zeros({5});
  CHECK(is_near(y.reshape({-1, 5}), wanted.y + bias));
  CHECK(is_near(leaf.grad().reshape(rows.sizes()), wanted.of_x));
  CHECK(is_near(layer->weight.grad(), wanted.of_w));
  CHECK((layer->weight.grad().scalar_type() == at::kFloat));
  if (with_bias) CHECK(is_near(layer->bias.grad(), gradient.reshape({-1, 5}).sum(0), 6));

  const Fp8Counts counts = take_counts(block);
  CHECK(counts.sampled == static_cast<std::uint64_t>(x.numel() + y.numel()));
  CHECK(counts.saturated == 0);
  CHECK(counts.activation_amax == x.abs().max().item<float>());
  CHECK(counts.gradient_amax == gradient.abs().max().item<float>());
  CHECK(take_counts(block) == Fp8Counts{});
}

// A way to write x [4, 6] times w [3, 6] transposed. `w` may be used freely.
struct Form {
  const char* name;
  Tensor (*compute)(const Tensor& x, const Tensor& w);
};
const Form kForms[] = {
    {"mm", [](const Tensor& x, const Tensor& w) { return at::mm(x, w.t()); }},
    {"matmul", [](const Tensor& x, const Tensor& w) { return at::matmul(x, w.t()); }},
    {"linear", [](const Tensor& x, const Tensor& w) { return at::linear(x, w); }},
    {"weight on the left", [](const Tensor& x, const Tensor& w) { return at::mm(w, x.t()).t(); }},
    {"matmul, weight on the left",
     [](const Tensor& x, const Tensor& w) { return at::matmul(w, x.t()).t(); }},
    {"bmm", [](const Tensor& x,
               const Tensor& w) { return at::bmm(x.unsqueeze(0), w.t().unsqueeze(0)).squeeze(0); }},
    {"bmm, weight on the left",
     [](const Tensor& x, const Tensor& w) {
       return at::bmm(w.unsqueeze(0), x.t().unsqueeze(0)).squeeze(0).t();
     }},
    {"four dimensions",
     [](const Tensor& x, const Tensor& w) {
       return at::matmul(x.view({2, 1, 2, 6}), w.t()).reshape({4, 3});
     }},
    {"addmm", [](const Tensor& x, const Tensor& w) { return at::addmm(at::zeros({3}), x, w.t()); }},
    {"addmm, scaled",
     [](const Tensor& x, const Tensor& w) {
       return at::addmm(at::full({4, 3}, 2.0), x, w.t(), -1, 0.5).mul(2).add(4);
     }},
    {"addmm that does not read what is added",
     [](const Tensor& x, const Tensor& w) {
       return at::addmm(at::full({4, 3}, std::nan("")), x, w.t(), 0, 1);
     }},
    {"baddbmm",
     [](const Tensor& x, const Tensor& w) {
       return at::baddbmm(at::ones({1, 4, 3}), x.unsqueeze(0), w.t().unsqueeze(0))
           .squeeze(0)
           .sub(1);
     }},
    {"einsum",
     [](const Tensor& x, const Tensor& w) {
       return at::einsum("mk,nk->mn", {x, w});
     }},
};

}  // namespace

TEST_SUITE("sdk.precision.fp8_linear") {
  TEST_CASE("Linear runs in FP8 unmodified, with the gradients of its quantised values") {
    for (const Fp8Recipe& recipe : recipes()) {
      for (const bool bias : {true, false}) {
        check_linear(recipe, {4, 6}, bias);
        check_linear(recipe, {3, 2, 6}, bias);
        check_linear(recipe, {2, 3, 2, 6}, bias);
      }
    }
  }

  TEST_CASE("every form of a product with one weight gives the same, gradients too") {
    at::manual_seed(3);
    const Tensor w = at::randn({3, 6}).requires_grad_();
    const Tensor leaf = at::randn({4, 6}).requires_grad_();
    const Tensor gradient = at::randn({4, 3});
    // Some forms quantise row by row, so x has scales by row.
    const Fp8Recipe recipe{Fp8Scaling::current, Fp8Granularity::row, 16, 0};
    const Expected wanted = expected(leaf.detach(), w.detach(), gradient, recipe);
    for (const Form& form : kForms) {
      CAPTURE(form.name);
      w.mutable_grad().reset();
      leaf.mutable_grad().reset();
      const auto block = block_of(recipe);
      Tensor y;
      {
        const Fp8Scope scope(block);
        y = form.compute(leaf * 1, w);
      }
      CHECK(take_counts(block).sampled == 24);
      CHECK(is_near(y, wanted.y));
      y.backward(gradient);
      // The gradient has other rows if the weight is on the left.
      CHECK(is_near(leaf.grad(), wanted.of_x, 2));
      CHECK(is_near(w.grad(), wanted.of_w, 2));
      CHECK(take_counts(block).sampled == 12);
    }
  }

  TEST_CASE("a batch of weights is multiplied batch by batch") {
    at::manual_seed(5);
    const Tensor w = at::randn({2, 6, 3}).requires_grad_();
    const Tensor x = at::randn({2, 4, 6});
    const Fp8Scope scope(block_of());
    const Tensor y = at::bmm(x, w);
    const Tensor wanted = at::bmm(through(x, FloatFormat::e4m3, Fp8Granularity::tensor),
                                  through(w.detach(), FloatFormat::e4m3, Fp8Granularity::tensor));
    CHECK(is_near(y, wanted));
    y.sum().backward();
    CHECK(w.grad().sizes() == w.sizes());
  }

  TEST_CASE("what torch refuses, it refuses with its own words") {
    const Tensor w = at::randn({6, 3}).requires_grad_();
    const Fp8Scope scope(block_of());
    CHECK_THROWS_WITH(at::mm(at::randn({2, 5}), w), doctest::Contains("cannot be multiplied"));
    CHECK_THROWS(at::mm(at::randn({2, 6}, at::kDouble), w));
  }

  TEST_CASE("values that FP8 cannot hold are clipped and counted; NaN and infinity go on") {
    torch::nn::Linear layer(4, 2);
    const auto block = block_of({Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0});
    const auto forward = [&](const Tensor& x) {
      const Fp8Scope scope(block);
      return layer->forward(x);
    };
    forward(at::ones({3, 4}));
    take_counts(block);
    block->end_step();
    CHECK(at::isfinite(forward(at::full({3, 4}, 1e6))).all().item<bool>());
    CHECK(take_counts(block).saturated == 12);
    Tensor bad = at::ones({3, 4});
    bad[1][2] = INFINITY;
    CHECK_FALSE(at::isfinite(forward(bad))[1].any().item<bool>());
    CHECK(at::isfinite(forward(bad))[0].all().item<bool>());
    bad[1][2] = NAN;
    CHECK(at::isnan(forward(bad))[1].all().item<bool>());
    const Fp8Counts counts = take_counts(block);
    CHECK(counts.saturated == 0);
    CHECK(counts.activation_amax == 1);
  }

  TEST_CASE("a shape that is slower in FP8 is left to bf16") {
    const auto timer = [](const ProductShape& shape, ProductPath path) {
      return (shape.columns == 8) == (path == ProductPath::fp8) ? 1.0 : 2.0;
    };
    const auto shapes = std::make_shared<Fp8Shapes>(timer);
    const auto block = std::make_shared<Fp8Block>(Fp8Recipe{}, shapes);
    torch::nn::Linear faster(6, 8);
    torch::nn::Linear slower(6, 7);
    const Tensor x = at::randn({2, 6});
    const Fp8Scope scope(block);
    slower->forward(x);
    CHECK(take_counts(block).sampled == 0);
    faster->forward(x);
    CHECK(take_counts(block).sampled == 12);
  }

  TEST_CASE("a weight that is used twice collects the gradients of both products") {
    at::manual_seed(4);
    torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
    const Tensor x = at::randn({2, 4});
    const auto block = block_of();
    Tensor middle;
    Tensor y;
    {
      const Fp8Scope scope(block);
      middle = layer->forward(x);
      y = layer->forward(middle);
    }
    middle.retain_grad();
    const Tensor gradient = at::randn({2, 4});
    y.backward(gradient);
    const Tensor w = layer->weight.detach();
    const Expected second = expected(middle.detach(), w, gradient, {});
    const Expected first = expected(x, w, middle.grad(), {});
    CHECK(is_near(layer->weight.grad(), first.of_w + second.of_w));
    CHECK(take_counts(block).sampled == 4 * 8);
  }

  TEST_CASE("a weight that is also an embedding gets gradients from both") {
    at::manual_seed(4);
    const Tensor table = at::randn({7, 4}).requires_grad_();
    const Tensor tokens = at::arange(5).to(at::kLong);
    Tensor logits;
    CHECK(quantized_in(
              [&] { logits = at::linear(at::tanh(at::embedding(table, tokens)), table); }) == 20);
    CHECK(is_near(logits.detach(), at::mm(at::tanh(table.slice(0, 0, 5)), table.t()).detach(), 3));
    logits.sum().backward();
    CHECK((table.grad().abs().sum(1) > 0).all().item<bool>());
  }

  TEST_CASE("an encoder layer runs its four Linears in FP8 and leaves attention alone") {
    at::manual_seed(8);
    const std::int64_t sequence = 5, batch = 3, width = 16, wide = 32;
    torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(width, 4).dim_feedforward(wide).dropout(0));
    const Tensor x = at::randn({sequence, batch, width});
    const Tensor plain = layer->forward(x);
    const auto block = block_of();
    Tensor y;
    {
      const Fp8Scope scope(block);
      y = layer->forward(x);
    }
    const auto rows = static_cast<std::uint64_t>(sequence * batch);
    CHECK(take_counts(block).sampled == rows * (3 * width + wide));
    CHECK_FALSE(at::equal(y, plain));
    CHECK(is_near(y.detach(), plain.detach(), 3));
    y.pow(2).sum().backward();
    CHECK(take_counts(block).sampled == rows * (3 * width + 2 * width + wide));
    for (const Tensor& parameter : layer->parameters()) {
      CHECK(at::isfinite(parameter.grad()).all().item<bool>());
    }
  }

  TEST_CASE("backward on other threads counts every product once") {
    const auto block = block_of({Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&block] {
        torch::nn::Linear layer(8, 8);
        for (int step = 0; step < 20; ++step) {
          Tensor y;
          {
            const Fp8Scope scope(block);
            y = layer->forward(at::ones({2, 8}));
          }
          std::thread([&y] { y.sum().backward(); }).join();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(take_counts(block).sampled == 4 * 20 * 32);
  }

  TEST_CASE("delayed scaling takes the scale of the steps before, and current that of now") {
    torch::nn::Linear layer(4, 3);
    for (const bool delayed : {true, false}) {
      const auto block = block_of(
          {delayed ? Fp8Scaling::delayed : Fp8Scaling::current, Fp8Granularity::tensor, 2, 0});
      const auto saturated_of = [&](double size) {
        {
          const Fp8Scope scope(block);
          layer->forward(at::full({2, 4}, size));
        }
        const std::uint64_t saturated = take_counts(block).saturated;
        block->end_step();
        return saturated;
      };
      CHECK(saturated_of(1) == 0);
      CHECK(saturated_of(100) == (delayed ? 8 : 0));
      CHECK(saturated_of(100) == 0);
      CHECK(saturated_of(200) == 0);  // the margin has grown by a bit
    }
  }
}
