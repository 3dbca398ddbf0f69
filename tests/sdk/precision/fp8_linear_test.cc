// Products with a weight inside of a scope: values, gradients, types, and what is left alone.
#include "fp8_support.h"

#include <doctest/doctest.h>

namespace {

using namespace fp8_test;

// A Linear layer and its gradients in FP8, against the definition.
void check_linear(const Fp8Recipe& recipe, at::IntArrayRef sizes, bool with_bias, bool autocast) {
  CAPTURE(sizes.size());
  CAPTURE(with_bias);
  CAPTURE(autocast);
  at::manual_seed(7);
  torch::nn::Linear layer(torch::nn::LinearOptions(sizes.back(), 5).bias(with_bias));
  const Tensor leaf = input(sizes).requires_grad_();
  const Tensor x = leaf * 1;
  const auto block = block_of(recipe);
  Tensor y;
  {
    const cox::PrecisionScope cast(at::kCPU,
                                   autocast ? cox::Precision::bf16 : cox::Precision::fp32);
    const Fp8Scope scope(block);
    y = layer->forward(x);
  }
  CHECK((y.scalar_type() == (autocast ? at::kBFloat16 : at::kFloat)));
  const Tensor gradient = at::randn(y.sizes()).to(y.scalar_type());
  y.backward(gradient);

  const Tensor rows = x.detach().reshape({-1, sizes.back()});
  const Expected wanted = expected(rows, layer->weight.detach(), gradient.reshape({-1, 5}), recipe);
  const Tensor bias = with_bias ? layer->bias.detach() : at::zeros({5});
  CHECK(is_near(y.reshape({-1, 5}), wanted.y + bias, autocast ? 6 : 20));
  CHECK(is_near(leaf.grad().reshape(rows.sizes()), wanted.of_x));
  CHECK(is_near(layer->weight.grad(), wanted.of_w));
  CHECK((layer->weight.grad().scalar_type() == at::kFloat));
  if (with_bias) CHECK(is_near(layer->bias.grad(), gradient.reshape({-1, 5}).sum(0), 6));

  const Fp8Counts counts = block->take_counts();
  CHECK(counts.sampled == static_cast<std::uint64_t>(x.numel() + y.numel()));
  CHECK(counts.saturated == 0);
  CHECK(counts.activation_amax == x.abs().max().item<float>());
  CHECK(counts.gradient_amax == gradient.abs().max().item<float>());
  CHECK(block->take_counts() == Fp8Counts{});
}

// A way to write x [4, 6] times w [3, 6] transposed; `w` may be used as it likes.
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
    {"row by row",
     [](const Tensor& x, const Tensor& w) {
       std::vector<Tensor> rows;
       for (const Tensor& row : x.unbind(0)) rows.push_back(at::matmul(row, w.t()));
       return at::stack(rows);
     }},
    {"column by column",
     [](const Tensor& x, const Tensor& w) {
       std::vector<Tensor> rows;
       for (const Tensor& row : x.unbind(0)) rows.push_back(at::matmul(w, row));
       return at::stack(rows);
     }},
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

// What is no product with one weight, computed from activations x [2, 4, 6, 6] and a weight.
const Form kLeftAlone[] = {
    {"two activations", [](const Tensor& x, const Tensor&) { return at::matmul(x, x); }},
    {"two weights", [](const Tensor&, const Tensor& w) { return at::mm(w, w.t()); }},
    {"a weight that is frozen",
     [](const Tensor& x, const Tensor& w) { return at::matmul(x, w.detach().t()); }},
    {"double",
     [](const Tensor& x, const Tensor& w) {
       return at::matmul(x.to(at::kDouble), at::ones_like(w, at::kDouble).requires_grad_().t());
     }},
    {"scaled dot product attention",
     [](const Tensor& x, const Tensor&) { return at::scaled_dot_product_attention(x, x, x); }},
    {"attention with dropout off and a mask",
     [](const Tensor& x, const Tensor&) {
       return at::scaled_dot_product_attention(x, x, x, at::ones({6, 6}, at::kBool).tril());
     }},
    {"convolution",
     [](const Tensor& x, const Tensor& w) {
       return at::conv2d(x, w.slice(0, 0, 2).view({1, 4, 3, 1}));
     }},
    {"embedding",
     [](const Tensor&, const Tensor& w) { return at::embedding(w, at::arange(3).to(at::kLong)); }},
    {"in-place operations",
     [](const Tensor& x, const Tensor& w) { return (x * 1).add_(1).relu_().mul_(w[0]); }},
    {"a vector as weight", [](const Tensor& x, const Tensor& w) { return at::matmul(x, w[0]); }},
    {"matrix times vector", [](const Tensor& x, const Tensor& w) { return at::mv(w, x[0][0][0]); }},
    {"nothing to multiply",
     [](const Tensor& x, const Tensor& w) { return at::matmul(x.slice(0, 0, 0), w.t()); }},
};

}  // namespace

TEST_SUITE("sdk.precision.fp8_linear") {
  TEST_CASE("Linear runs in FP8 unmodified, with the gradients of its quantised values") {
    for (const Fp8Recipe& recipe : recipes()) {
      for (const bool bias : {true, false}) {
        for (const bool autocast : {true, false}) {
          check_linear(recipe, {4, 6}, bias, autocast);
          check_linear(recipe, {3, 2, 6}, bias, autocast);
          check_linear(recipe, {2, 3, 2, 6}, bias, autocast);
        }
      }
    }
    check_linear({}, {6}, true, false);
    check_linear({}, {1, 48}, true, true);
  }

  TEST_CASE("every form of a product with one weight gives the same, gradients too") {
    at::manual_seed(3);
    const Tensor w = at::randn({3, 6}).requires_grad_();
    const Tensor leaf = at::randn({4, 6}).requires_grad_();
    const Tensor gradient = at::randn({4, 3});
    // Rows are quantised alone in the forms that take them one by one, so: scales by row for x.
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
      CHECK(block->take_counts().sampled == 24);
      CHECK(is_near(y, wanted.y));
      y.backward(gradient);
      // Its gradient comes with other rows where the weight stands on the left.
      CHECK(is_near(leaf.grad(), wanted.of_x, 2));
      CHECK(is_near(w.grad(), wanted.of_w, 2));
      CHECK(block->take_counts().sampled == 12);
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

  TEST_CASE("whatever is no product with one weight is left alone, bit for bit") {
    at::manual_seed(9);
    const Tensor x = at::randn({2, 4, 6, 6});
    const Tensor w = at::randn({6, 6}).requires_grad_();
    for (const bool autocast : {true, false}) {
      const cox::PrecisionScope cast(at::kCPU,
                                     autocast ? cox::Precision::bf16 : cox::Precision::fp32);
      for (const Form& form : kLeftAlone) {
        CAPTURE(form.name);
        CAPTURE(autocast);
        const Tensor outside = form.compute(x, w);
        Tensor inside;
        CHECK(quantized_in([&] { inside = form.compute(x, w); }) == 0);
        CHECK((inside.scalar_type() == outside.scalar_type()));
        CHECK(at::equal(inside, outside));
      }
    }
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
    block->end_step();
    block->take_counts();
    CHECK(at::isfinite(forward(at::full({3, 4}, 1e6))).all().item<bool>());
    CHECK(block->take_counts().saturated == 12);
    Tensor bad = at::ones({3, 4});
    bad[1][2] = INFINITY;
    CHECK_FALSE(at::isfinite(forward(bad))[1].any().item<bool>());
    CHECK(at::isfinite(forward(bad))[0].all().item<bool>());
    bad[1][2] = NAN;
    CHECK(at::isnan(forward(bad))[1].all().item<bool>());
    const Fp8Counts counts = block->take_counts();
    CHECK(counts.saturated == 0);
    CHECK(counts.activation_amax == 1);
  }

  TEST_CASE("without gradients the result has the same bits and is not counted") {
    torch::nn::Linear layer(6, 5);
    const Tensor x = at::randn({4, 6});
    const auto block = block_of();
    const auto forward = [&] {
      const Fp8Scope scope(block);
      return layer->forward(x);
    };
    const Tensor with = forward();
    CHECK(block->take_counts().sampled > 0);
    const torch::NoGradGuard no_grad;
    const Tensor without = forward();
    CHECK(block->take_counts() == Fp8Counts{});  // an evaluation is no evidence
    CHECK(at::equal(with, without));
    CHECK_FALSE(without.requires_grad());
  }

  TEST_CASE("a shape that is slower in FP8 stays with autocast, forward and backward") {
    const auto timer = [](const ProductShape& shape, ProductPath path) {
      return (shape.columns == 8) == (path == ProductPath::fp8) ? 1.0 : 2.0;
    };
    const auto shapes = std::make_shared<Fp8Shapes>(timer);
    const auto block = std::make_shared<Fp8Block>(Fp8Recipe{}, shapes);
    torch::nn::Linear faster(6, 8);
    torch::nn::Linear slower(6, 7);
    const Tensor x = at::randn({2, 6});
    const cox::PrecisionScope cast(at::kCPU, cox::Precision::bf16);
    const Tensor plain = slower->forward(x);
    const Fp8Scope scope(block);
    CHECK(at::equal(slower->forward(x), plain));
    CHECK(block->take_counts().sampled == 0);
    faster->forward(x);
    CHECK(block->take_counts().sampled == 12);
  }
}
