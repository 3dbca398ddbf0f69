#include "coordinator/core/operator_flops.h"

#include <random>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Sizes = std::vector<std::int64_t>;

TensorShape data(Sizes sizes) {
  return {std::move(sizes), false};
}
TensorShape weight(Sizes sizes) {
  return {std::move(sizes), true};
}

OperatorShapes call(std::string_view name, std::vector<TensorShape> operands, Sizes result = {}) {
  OperatorShapes shapes{name, std::move(operands), {}};
  shapes.results.push_back(data(std::move(result)));
  return shapes;
}

// Counts multiplications and additions of [b, m, k] by [b, k, n], one by one.
double counted_one_by_one(std::int64_t b, std::int64_t m, std::int64_t k, std::int64_t n) {
  double flops = 0;
  for (std::int64_t i = 0; i < b * m * n; ++i) {
    for (std::int64_t j = 0; j < k; ++j) flops += 2;
  }
  return flops;
}

}  // namespace

TEST_SUITE("core.operators") {
  TEST_CASE("products of matrices have the counts of torch.utils.flop_counter") {
    struct Case {
      OperatorShapes shapes;
      OperatorFlops flops;
    };
    const Case cases[] = {
        {call("aten::mm", {data({2, 3}), weight({3, 5})}), {60, 60}},
        {call("aten::mm", {weight({2, 3}), weight({3, 5})}), {60, 120}},
        {call("aten::mm", {data({2, 3}), data({3, 5})}), {60, 0}},
        {call("aten::addmm", {weight({5}), data({2, 3}), weight({3, 5})}), {60, 60}},
        {call("aten::bmm", {weight({4, 2, 3}), weight({4, 3, 5})}), {240, 480}},
        {call("aten::baddbmm", {data({4, 2, 5}), weight({4, 2, 3}), data({4, 3, 5})}), {240, 240}},
        {call("aten::addbmm", {data({2, 5}), weight({4, 2, 3}), data({4, 3, 5})}), {240, 240}},
        {call("aten::mv", {weight({2, 3}), data({3})}), {12, 12}},
        {call("aten::addmv", {data({2}), weight({2, 3}), weight({3})}), {12, 24}},
        {call("aten::dot", {weight({7}), data({7})}), {14, 14}},
        {call("aten::mm", {data({0, 3}), weight({3, 5})}), {0, 0}},
    };
    for (const Case& it : cases) {
      CAPTURE(it.shapes.name);
      const auto flops = flops_of(it.shapes);
      REQUIRE(flops);
      CHECK(flops->forward == it.flops.forward);
      CHECK(flops->backward == it.flops.backward);
    }
  }

  TEST_CASE("a product of any sizes is counted as it is multiplied one by one") {
    std::mt19937 random(3);
    const auto size = [&random] { return static_cast<std::int64_t>(random() % 9); };
    for (int i = 0; i < 200; ++i) {
      const std::int64_t b = size(), m = size(), k = size(), n = size();
      const auto flops = flops_of(call("aten::bmm", {weight({b, m, k}), weight({b, k, n})}));
      REQUIRE(flops);
      CHECK(flops->forward == counted_one_by_one(b, m, k, n));
      CHECK(flops->backward == 2 * flops->forward);
    }
  }

  TEST_CASE("a convolution is counted by the places of its result, in any number of dimensions") {
    // 8 images of 3 channels to 16, kernels of 3 by 3, 30 by 30 places.
    OperatorShapes plain =
        call("aten::convolution", {data({8, 3, 32, 32}), weight({16, 3, 3, 3}), weight({16})},
             {8, 16, 30, 30});
    plain.convolution = ConvolutionKind::plain;
    const double flops = 2.0 * 8 * 16 * 30 * 30 * 3 * 3 * 3;
    CHECK(flops_of(plain) == OperatorFlops{flops, flops});
    plain.operands[0].needs_gradient = true;
    CHECK(flops_of(plain) == OperatorFlops{flops, 2 * flops});

    OperatorShapes line =
        call("aten::convolution", {weight({2, 4, 10}), weight({6, 4, 3}), {}}, {2, 6, 8});
    line.convolution = ConvolutionKind::plain;
    CHECK(flops_of(line)->forward == 2.0 * 2 * 6 * 8 * 4 * 3);
  }

  TEST_CASE("groups divide a convolution, forward and backward") {
    OperatorShapes shapes =
        call("aten::convolution", {weight({2, 8, 5, 5}), weight({8, 1, 3, 3})}, {2, 8, 3, 3});
    shapes.convolution = ConvolutionKind::plain;
    const double flops = 2.0 * 2 * 8 * 3 * 3 * 3 * 3;
    CHECK(flops_of(shapes) == OperatorFlops{flops, 2 * flops});
  }

  TEST_CASE("a transposed convolution is counted by the places of its operand") {
    OperatorShapes shapes =
        call("aten::convolution", {weight({2, 6, 4, 4}), weight({6, 3, 2, 2})}, {2, 3, 8, 8});
    shapes.convolution = ConvolutionKind::transposed;
    CHECK(flops_of(shapes)->forward == 2.0 * 2 * 6 * 4 * 4 * 3 * 2 * 2);
  }

  TEST_CASE("attention in one call is two products, and five backward, whatever its mask") {
    // 2 sequences, 4 heads, 10 queries, 12 keys of 8 elements, values of 6.
    OperatorShapes shapes =
        call("aten::_scaled_dot_product_flash_attention_for_cpu",
             {weight({2, 4, 10, 8}), weight({2, 4, 12, 8}), weight({2, 4, 12, 6}), {}});
    const double scores = counted_one_by_one(8, 10, 8, 12);
    const double means = counted_one_by_one(8, 10, 12, 6);
    CHECK(flops_of(shapes) == OperatorFlops{scores + means, 3 * scores + 2 * means});
    for (TensorShape& operand : shapes.operands) operand.needs_gradient = false;
    CHECK(flops_of(shapes) == OperatorFlops{scores + means, 0});
  }

  TEST_CASE("a recurrent layer in one call is two products for each element of its sequence") {
    OperatorShapes shapes =
        call("aten::mkldnn_rnn_layer",
             {data({7, 3, 5}), weight({16, 5}), weight({16, 4}), weight({16}), weight({16})});
    const double operand = 2.0 * 7 * 3 * 16 * 5;
    const double state = 2.0 * 7 * 3 * 16 * 4;
    CHECK(flops_of(shapes) == OperatorFlops{operand + state, operand + 2 * state});
  }

  TEST_CASE("our own product in FP8 has its weight as rows, or is a convolution") {
    OperatorShapes shapes = call("coxswain::fp8_product", {weight({2, 3}), weight({5, 3})}, {2, 5});
    CHECK(flops_of(shapes) == OperatorFlops{60, 120});
    shapes =
        call("coxswain::fp8_product", {data({1, 2, 4, 4}), weight({3, 2, 1, 1})}, {1, 3, 4, 4});
    shapes.convolution = ConvolutionKind::plain;
    CHECK(flops_of(shapes) == OperatorFlops{192, 192});
  }

  TEST_CASE("what has no count is not counted as nothing") {
    CHECK_FALSE(flops_of(call("aten::gelu", {weight({100, 100})})));
    CHECK_FALSE(flops_of(call("aten::native_layer_norm", {weight({100, 100})})));
    CHECK_FALSE(flops_of(call("mine::product", {weight({2, 3}), weight({3, 5})})));
    CHECK_FALSE(flops_of(call("aten::m", {weight({2, 3}), weight({3, 5})})));
    CHECK_FALSE(flops_of(call("", {})));
  }

  TEST_CASE("sizes that do not fit an operator's name are not counted") {
    for (const char* name :
         {"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution", "aten::mkldnn_rnn_layer",
          "aten::_scaled_dot_product_flash_attention", "coxswain::fp8_product"}) {
      CAPTURE(name);
      CHECK_FALSE(flops_of(call(name, {})));
      CHECK_FALSE(flops_of(call(name, {weight({3})})));
      CHECK_FALSE(flops_of(call(name, {{}, {}, {}, {}})));
    }
    OperatorShapes bare{"aten::convolution", {weight({1, 2, 3}), weight({1, 2, 3})}, {}};
    CHECK_FALSE(flops_of(bare));
  }
}
