// Products in FP8 as an operator: result and gradients equal those of a hand-written product of
// rounded operands. Other operators are declined.
#include "sdk/src/precision/fp8_operator.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape.h"
#include "tests/sdk/precision/fp8_counts.h"
#include "tests/sdk/same_bits.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;
using fp8_test::take_counts;

namespace {

using at::Tensor;
using fp8_test::take_counts;
using Tensors = std::vector<Tensor>;
using Program = std::function<Tensor(const Tensors&)>;

// Runs products in FP8, and records the operators that ran.
class InFp8 final : public OperatorListener {
 public:
  explicit InFp8(std::shared_ptr<Fp8Block> block) : products_(std::move(block)) {}
  std::optional<ProductFormat> product_format() const override {
    return ProductFormat{at::kBFloat16, const_cast<Fp8Products*>(&products_)};
  }
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override {
    names_.push_back(call.handle.operator_name().name);
  }
  bool ran(const std::string& name) const {
    return std::ranges::find(names_, name) != names_.end();
  }

 private:
  Fp8Products products_;
  std::vector<std::string> names_;
};

std::shared_ptr<Fp8Block> block_of(const Fp8Recipe& recipe = {}) {
  return std::make_shared<Fp8Block>(recipe);
}

// Returns the value of the nearest code, by torch's own casts. Uses one scale, or one for each row.
Tensor rounded(const Tensor& values, FloatFormat format, Fp8Granularity by) {
  const Tensor scale = scales_by_torch(values, format, by, 0);
  return (values / scale).to(fp8_type(format)).to(at::kFloat) * scale;
}

// Rounds forward and passes the gradient unchanged.
class Rounding : public torch::autograd::Function<Rounding> {
 public:
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& values, bool by_row) {
    return rounded(values, FloatFormat::e4m3,
                   by_row ? Fp8Granularity::row : Fp8Granularity::tensor);
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors gradients) {
    return {gradients[0], Tensor()};
  }
};

Tensor by_hand(const Tensor& values, Fp8Granularity by) {
  return Rounding::apply(values, by == Fp8Granularity::row);
}

Tensor gradient_rounded(const Tensor& result, Fp8Granularity by) {
  result.register_hook([by](const Tensor& g) { return rounded(g, FloatFormat::e5m2, by); });
  return result;
}

Tensors inputs(const std::vector<std::vector<std::int64_t>>& shapes) {
  torch::manual_seed(3);
  Tensors made;
  for (const auto& shape : shapes) made.push_back(at::randn(shape).mul_(3).requires_grad_());
  return made;
}

// Returns the gradient of each input, and the result. Derives the first input from a leaf, so that
// it is no parameter.
Tensors values_of(const Program& program, const Tensors& in) {
  Tensors operands = in;
  operands[0] = in[0] * 1.5;
  const Tensor result = program(operands);
  const Tensor weights = at::arange(result.numel(), at::kFloat).view(result.sizes()).sin();
  Tensors values = torch::autograd::grad({(result * weights).sum()}, in);
  values.push_back(result.detach());
  return values;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

bool near(const Tensors& a, const Tensors& b, double tolerance) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Tensor& x, const Tensor& y) {
    return at::allclose(x, y, tolerance, tolerance);
  });
}

struct ProductCase {
  const char* name;
  std::vector<std::vector<std::int64_t>> shapes;
  Program written;
  Program rounded;  // the same, written by hand
};

constexpr auto kTensor = Fp8Granularity::tensor;

std::vector<ProductCase> product_cases() {
  const auto convolution = [](at::IntArrayRef stride, bool transposed, std::int64_t groups,
                              bool rounds) {
    return [=, stride = stride.vec()](const Tensors& t) {
      const Tensor x = rounds ? by_hand(t[0], kTensor) : t[0];
      const Tensor w = rounds ? by_hand(t[1], kTensor) : t[1];
      const Tensor bias = rounds ? Tensor() : t[2];
      const Tensor y =
          at::convolution(x, w, bias, stride, {1, 0}, {1, 1}, transposed, {0, 0}, groups);
      return rounds ? gradient_rounded(y, kTensor) + t[2].view({1, -1, 1, 1}) : y;
    };
  };
  return {
      {"mm",
       {{5, 7}, {7, 3}},
       [](const Tensors& t) { return at::mm(t[0], t[1]); },
       [](const Tensors& t) {
         return gradient_rounded(at::mm(by_hand(t[0], kTensor), by_hand(t[1], kTensor)), kTensor);
       }},
      {"mm with the weight on the left",
       {{7, 5}, {3, 7}},
       [](const Tensors& t) { return at::mm(t[1], t[0]); },
       [](const Tensors& t) {
         return gradient_rounded(at::mm(by_hand(t[1], kTensor), by_hand(t[0], kTensor)), kTensor);
       }},
      {"linear",
       {{2, 5, 7}, {3, 7}, {3}},
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
       [](const Tensors& t) {
         const Tensor y = at::mm(by_hand(t[0].view({10, 7}), kTensor), by_hand(t[1], kTensor).t());
         return (gradient_rounded(y, kTensor) + t[2]).view({2, 5, 3});
       }},
      {"addmm with factors",
       {{5, 7}, {7, 3}, {5, 3}},
       [](const Tensors& t) { return at::addmm(t[2], t[0], t[1], 0.5, 2.0); },
       [](const Tensors& t) {
         const Tensor y = at::mm(by_hand(t[0], kTensor), by_hand(t[1], kTensor));
         return at::add(gradient_rounded(y, kTensor) * 2.0, t[2], 0.5);
       }},
      {"bmm",
       {{4, 5, 7}, {4, 7, 3}},
       [](const Tensors& t) { return at::bmm(t[0], t[1]); },
       [](const Tensors& t) {
         return gradient_rounded(at::bmm(by_hand(t[0], kTensor), by_hand(t[1], kTensor)), kTensor);
       }},
      {"convolution",
       {{2, 4, 6, 6}, {8, 2, 3, 1}, {8}},
       convolution({2, 1}, false, 2, false),
       convolution({2, 1}, false, 2, true)},
      {"transposed convolution",
       {{2, 4, 6, 6}, {4, 3, 3, 1}, {3}},
       convolution({2, 1}, true, 1, false),
       convolution({2, 1}, true, 1, true)},
  };
}

Tensors in_fp8(const ProductCase& it, const std::shared_ptr<Fp8Block>& block, bool* ran = nullptr) {
  InFp8 listener(block);
  const Tensors in = inputs(it.shapes);
  Tensors values;
  {
    const StreamScope shown({&listener});
    values = values_of(it.written, in);
  }
  if (ran != nullptr) *ran = listener.ran("coxswain::fp8_product");
  return values;
}

// Records the shown operators, and drops all tensors that may be dropped.
Tensors in_fp8_taped(const ProductCase& it, const std::shared_ptr<Fp8Block>& block,
                     std::uint64_t& replayed) {
  InFp8 listener(block);
  const Tensors in = inputs(it.shapes);
  const auto tape = Tape::make("a product");
  Tensor result;
  Tensors operands = in;
  {
    const TapeScope recording(*tape, {&listener});
    operands[0] = in[0] * 1.5;
    result = it.written(operands);
  }
  tape->close();
  const Tensor weights = at::arange(result.numel(), at::kFloat).view(result.sizes()).sin();
  Tensors values = torch::autograd::grad({(result * weights).sum()}, in);
  values.push_back(result.detach());
  replayed = tape->counts().replayed;
  return values;
}

TEST_SUITE("sdk.precision.fp8_operator") {
  TEST_CASE("each product of a weight is the product of operands rounded by hand") {
    for (const ProductCase& it : product_cases()) {
      CAPTURE(it.name);
      bool ran = false;
      const Tensors found = in_fp8(it, block_of(), &ran);
      CHECK(ran);
      CHECK(near(found, values_of(it.rounded, inputs(it.shapes)), 1e-5));
      CHECK_FALSE(near(found, values_of(it.written, inputs(it.shapes)), 1e-3));
    }
  }

  TEST_CASE("rows have scales of their own where the recipe says so") {
    const ProductCase it = product_cases()[0];
    const auto rows = Fp8Granularity::row;
    const Fp8Recipe recipe{Fp8Scaling::current, rows};
    InFp8 listener(block_of(recipe));
    const Tensor w = inputs(it.shapes)[1];
    const Tensor x =
        inputs(it.shapes)[0].detach() * at::tensor({1e-4F, 1e-2F, 1.0F, 1e2F, 1e4F}).view({5, 1});
    const auto run = [&](OperatorListener& with) {
      const StreamScope shown({&with});
      return it.written({x, w});
    };
    const Tensor found = run(listener);
    InFp8 in_one_scale(block_of());
    const Tensor expected =
        at::mm(rounded(x, FloatFormat::e4m3, rows), rounded(w.t(), FloatFormat::e4m3, rows).t());
    CHECK(at::allclose(found, expected, 1e-6, 1e-6));
    CHECK_FALSE(at::allclose(found, run(in_one_scale), 1e-2, 0));
  }

  TEST_CASE("a tape runs products again with the same bits, and nothing is counted twice") {
    REQUIRE(install_saved_tensor_engine().ok());
    for (const Fp8Scaling scaling : {Fp8Scaling::current, Fp8Scaling::delayed}) {
      for (const ProductCase& it : product_cases()) {
        CAPTURE(it.name);
        const auto kept = block_of({scaling});
        const auto taped = block_of({scaling});
        for (int step = 0; step < 3; ++step) {
          std::uint64_t replayed = 0;
          CHECK(same(in_fp8(it, kept), in_fp8_taped(it, taped, replayed)));
          CHECK(replayed > 0);
          CHECK((take_counts(kept) == take_counts(taped)));
          kept->end_step();
          taped->end_step();
        }
        CHECK((kept->state() == taped->state()));
      }
    }
  }

  TEST_CASE("delayed scaling takes the scales of earlier steps, for each weight its own") {
    const auto block = block_of({Fp8Scaling::delayed});
    InFp8 listener(block);
    const Tensor small = at::randn({4, 6}).requires_grad_();
    const Tensor large = at::randn({6, 4}).requires_grad_();
    const auto step = [&](double factor, bool swapped) {
      const StreamScope shown({&listener});
      const Tensor x = at::ones({3, 4}) * factor, y = at::ones({3, 6}) * (1000 * factor);
      Tensor a, b;
      if (swapped) b = at::mm(y, large);
      a = at::mm(x, small);
      if (!swapped) b = at::mm(y, large);
      (a.sum() + b.sum()).backward();
    };
    step(1, false);
    CHECK(take_counts(block).saturated == 0);
    block->end_step();
    step(1, true);  // in another order: magnitudes belong to weights, so nothing is clipped
    CHECK(take_counts(block).saturated == 0);
    block->end_step();
    step(1000, false);
    CHECK(take_counts(block).saturated > 0);
  }

  TEST_CASE("what is no product of one weight in float is declined, and runs in bf16 or as it is") {
    const Tensor w = at::randn({6, 6}).requires_grad_();
    const Tensor x = at::randn({6, 6});
    const auto ran = [&](const std::function<void()>& program) {
      InFp8 listener(block_of());
      const StreamScope shown({&listener});
      program();
      return listener.ran("coxswain::fp8_product");
    };
    CHECK(ran([&] { at::mm(x, w); }));
    CHECK_FALSE(ran([&] { at::mm(x, x); }));
    CHECK_FALSE(ran([&] { at::mm(w, w); }));
    CHECK_FALSE(ran([&] { at::mm(x.to(at::kDouble), w.to(at::kDouble)); }));
    CHECK_FALSE(ran([&] { at::mv(w, x[0]); }));
    CHECK_FALSE(ran([&] {
      const at::NoGradGuard no_grad;
      at::mm(x, w);
    }));
  }

  TEST_CASE("gradients of gradients are refused with what to do instead") {
    InFp8 listener(block_of());
    const Tensor x = at::randn({4, 6}).requires_grad_();
    const Tensor w = at::randn({6, 3}).requires_grad_();
    Tensor y;
    {
      const StreamScope shown({&listener});
      y = at::mm(x * 2, w);
    }
    CHECK_THROWS_WITH_AS(torch::autograd::grad({y.sum()}, {x}, {}, true, true),
                         doctest::Contains("forbid fp8 for this block"), Error);
  }

  TEST_CASE("what is quantised while counting is off leaves no trace") {
    const auto block = block_of({Fp8Scaling::delayed});
    block->count(Fp8Count::off);
    in_fp8(product_cases()[0], block);
    CHECK(take_counts(block).sampled == 0);
    block->count(Fp8Count::on);
    in_fp8(product_cases()[0], block);
    CHECK(take_counts(block).sampled == 5 * 7 + 5 * 3);
  }
}

}  // namespace
