#include "coxswain/clip.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "coxswain/error.h"

#include <doctest/doctest.h>

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors with_gradients(std::uint64_t seed) {
  torch::manual_seed(seed);
  Tensors out;
  for (const at::ScalarType type : {at::kFloat, at::kFloat, at::kBFloat16, at::kDouble}) {
    out.push_back(torch::randn({5, 7}, type).requires_grad_());
    out.back().mutable_grad() = torch::randn({5, 7}, type);
  }
  out.push_back(torch::randn({3}).requires_grad_());  // without a gradient
  return out;
}

double norm_of(const Tensors& parameters) {
  double squares = 0;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    squares += p.grad().to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(squares);
}

Tensors gradients_of(const Tensors& parameters) {
  Tensors out;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) out.push_back(p.grad().clone());
  }
  return out;
}

bool same(const Tensors& a, const Tensors& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = a[i].equal(b[i]);
  return all;
}

TEST_SUITE("sdk.optim.clip") {
  TEST_CASE("a norm above the limit is brought down to it, the direction kept") {
    const Tensors p = with_gradients(1);
    const Tensors before = gradients_of(p);
    const double norm = norm_of(p);
    CHECK(cox::clip_by_global_norm(p, 0.5) == doctest::Approx(norm).epsilon(1e-6));
    CHECK(norm_of(p) == doctest::Approx(0.5).epsilon(1e-3));  // bf16 has three digits
    CHECK(p[0].grad().allclose(before[0] * (0.5 / norm)));
    CHECK_FALSE(p[4].grad().defined());
  }

  TEST_CASE("a norm at or below the limit changes no bit, and infinity only measures") {
    const Tensors p = with_gradients(2);
    const Tensors before = gradients_of(p);
    const double norm = cox::clip_by_global_norm(p, std::numeric_limits<double>::infinity());
    CHECK(norm == doctest::Approx(norm_of(p)).epsilon(1e-6));
    CHECK(cox::clip_by_global_norm(p, norm) == norm);
    CHECK(same(gradients_of(p), before));
  }

  TEST_CASE("a parameter that two modules share is clipped once") {
    at::Tensor shared = torch::zeros({4}).requires_grad_();
    shared.mutable_grad() = torch::full({4}, 5.0);
    CHECK(cox::clip_by_global_norm(Tensors{shared, shared}, 1.0) == 10.0);
    CHECK(norm_of({shared}) == doctest::Approx(1.0));
  }

  TEST_CASE("a norm that is known is not computed again") {
    const Tensors p = with_gradients(3);
    const Tensors before = gradients_of(p);
    bool asked = false;
    const auto combine = [&](double squares) { return asked = true, squares; };
    CHECK(cox::clip_by_global_norm(p, 1, {.known_norm = 4, .combine = combine}) == 4);
    CHECK_FALSE(asked);
    CHECK(p[0].grad().equal(before[0] * 0.25));
  }

  TEST_CASE("gradients spread over ranks are clipped by the norm of all of them") {
    const Tensors p = with_gradients(4);
    const Tensors before = gradients_of(p);
    const double norm = norm_of(p);
    double local = 0;
    const auto combine = [&](double squares) {
      local = squares;
      return squares + 144;
    };
    const double all = cox::clip_by_global_norm(p, 1, {.combine = combine});
    CHECK(local == doctest::Approx(norm * norm).epsilon(1e-6));
    CHECK(all == doctest::Approx(std::sqrt(norm * norm + 144)).epsilon(1e-6));
    CHECK(p[1].grad().allclose(before[1] / all));
  }

  TEST_CASE("a norm that is not finite is told and nothing is touched") {
    for (const double value :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      const Tensors p = with_gradients(5);
      p[2].mutable_grad()[1][1] = value;
      const at::Tensor first = p[0].grad().clone();
      CHECK_FALSE(std::isfinite(cox::clip_by_global_norm(p, 1)));
      CHECK(p[0].grad().equal(first));
    }
  }

  TEST_CASE("squares that fp32 cannot hold are clipped all the same") {
    const at::Tensor p = at::zeros({3}).requires_grad_();
    p.mutable_grad() = at::full({3}, 1e30);
    CHECK(cox::clip_by_global_norm(Tensors{p}, 1) == doctest::Approx(std::sqrt(3) * 1e30));
    CHECK(p.grad().allclose(at::full({3}, 1 / std::sqrt(3.0))));
  }

  TEST_CASE("limits that make no sense are refused, and no gradients are no error") {
    for (const double limit : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
      CHECK_THROWS_WITH_AS(cox::clip_by_global_norm(with_gradients(6), limit),
                           doctest::Contains("expected max_norm > 0"), cox::Error);
    }
    CHECK_THROWS_WITH_AS(cox::clip_by_global_norm(with_gradients(6), 1, {.known_norm = -1}),
                         doctest::Contains("expected known_norm >= 0"), cox::Error);
    CHECK(cox::clip_by_global_norm(Tensors{}, 1) == 0);
  }
}

}  // namespace
