#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/gradient_reduction.h"

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_SUITE("gradient norm") {
  TEST_CASE("a step without any gradient has none to divide on one rank either") {
    const Tensors parameters = {torch::ones({3}).set_requires_grad(true)};
    LocalReduction reduction(parameters);
    reduction.begin({.weight = 1, .unit = 1});
    CHECK(reduction.hand_back(4, 2) == 0);
    CHECK_FALSE(parameters[0].grad().defined());
  }

  TEST_CASE("the norm is that of all elements together, and undefined tensors count nothing") {
    const Tensors tensors = {torch::full({4}, 3.0), at::Tensor(), torch::zeros({0}),
                             torch::full({4}, 4.0, at::kDouble)};
    CHECK(l2_norm(tensors) == doctest::Approx(10));
    CHECK(l2_norm({}) == 0);
    CHECK(l2_norm(Tensors{torch::full({9}, 1.0f), torch::full({16}, 1.0, at::kDouble)}) ==
          doctest::Approx(5));
  }

  TEST_CASE("the norm is finite exactly if all elements are, also where float squares overflow") {
    CHECK(l2_norm(Tensors{torch::full({3}, 1e30)}) == doctest::Approx(std::sqrt(3.0) * 1e30));
    CHECK_FALSE(std::isfinite(l2_norm(Tensors{torch::tensor({1.0, kNaN})})));
    CHECK_FALSE(std::isfinite(l2_norm(Tensors{torch::tensor({1.0, -kInfinity})})));
  }

  TEST_CASE("non-finite elements are counted") {
    CHECK(count_nonfinite(torch::tensor({1.0, kNaN, 2.0, -kInfinity, kInfinity})) == 3);
    CHECK(count_nonfinite(torch::ones({2})) == 0);
    CHECK(count_nonfinite(at::Tensor()) == 0);
    CHECK(count_nonfinite(torch::zeros({0})) == 0);
  }

  TEST_CASE("the norm is that of a sum in double, at sizes around every boundary of the loop") {
    torch::manual_seed(3);
    for (const std::int64_t size : {1, 31, 32, 33, 1000, 131072, 131073, 400001}) {
      const at::Tensor values = torch::randn({size}, at::kFloat) * 1e-3;
      const double expected = at::linalg_vector_norm(values.to(at::kDouble), 2).item<double>();
      CHECK(std::abs(l2_norm(Tensors{values}) - expected) <= 1e-13 * expected);
    }
  }

  TEST_CASE("threads change no bit of the norm") {
    torch::manual_seed(4);
    const Tensors values = {torch::randn({500001}), torch::randn({77})};
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const double one = l2_norm(values);
    at::set_num_threads(3);
    CHECK(l2_norm(values) == one);
    at::set_num_threads(before);
  }

  TEST_CASE("a single bad value anywhere makes the norm non-finite") {
    for (const std::int64_t at_index : {0, 5, 131071, 131072, 262200}) {
      at::Tensor values = torch::ones({262201});
      values[at_index] = at_index % 2 ? kNaN : kInfinity;
      CHECK_FALSE(std::isfinite(l2_norm(Tensors{values})));
    }
  }

  TEST_CASE("views, transposed and other types count like their contiguous copies") {
    torch::manual_seed(5);
    const at::Tensor base = torch::randn({40, 30});
    const auto same = [](const at::Tensor& tensor) {
      const double expected =
          at::linalg_vector_norm(tensor.to(at::kDouble).contiguous(), 2).item<double>();
      CHECK(l2_norm(Tensors{tensor}) == doctest::Approx(expected).epsilon(1e-6));
    };
    same(base.t());
    same(base.slice(1, 3, 17));
    same(base.expand({4, 40, 30}));
    same(base.to(at::kBFloat16));
  }
}
