// Products run in the listener's type, as if the program had written the casts by hand. All other
// operators run as written, bit for bit.
#include "sdk/src/stream/product_formats.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "coxswain/precision.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/storage.h"
#include "tests/sdk/same_bits.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Program = std::function<Tensor(const Tensors&)>;

// Gives products a type, and records the operators that ran with an operand of this type.
class Narrowing final : public OperatorListener {
 public:
  explicit Narrowing(std::optional<at::ScalarType> type) : type_(type) {}
  std::optional<ProductFormat> product_format() const override {
    return type_ ? std::optional(ProductFormat{*type_}) : std::nullopt;
  }
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override {
    const at::IValue& first = call.arguments[0];
    if (!first.isTensor() || first.toTensor().scalar_type() != type_) return;
    const std::string& name = call.handle.operator_name().name;
    if (name != "aten::_to_copy") narrow_.push_back(name.substr(6));
  }
  const std::vector<std::string>& narrow() const { return narrow_; }

 private:
  const std::optional<at::ScalarType> type_;
  std::vector<std::string> narrow_;
};

struct Outcome {
  Tensors values;  // the result, and the gradient of each input
  std::vector<std::string> narrow;
};

Tensors inputs(const std::vector<std::vector<std::int64_t>>& shapes) {
  torch::manual_seed(3);
  Tensors made;
  for (const auto& shape : shapes) made.push_back(at::randn(shape).requires_grad_());
  return made;
}

Outcome run(const Program& program, const Tensors& in, std::optional<at::ScalarType> type) {
  Narrowing listener(type);
  Tensor result;
  {
    const StreamScope shown({&listener});
    result = program(in);
  }
  Outcome outcome{{result.detach()}, listener.narrow()};
  if (!result.requires_grad()) return outcome;
  for (const Tensor& gradient :
       torch::autograd::grad({result.to(at::kDouble).sum()}, in, {}, false, false, true)) {
    outcome.values.push_back(gradient);
  }
  return outcome;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || sdk_test::same_bits(x, y));
  });
}

struct ProductCase {
  const char* name;
  std::vector<std::vector<std::int64_t>> shapes;
  Program written;
  Program by_hand;  // in bf16
};

Tensor n(const Tensor& tensor) {
  return tensor.to(at::kBFloat16);
}

std::vector<ProductCase> products() {
  const auto float_of = [](const Tensor& t) { return t.to(at::kFloat); };
  return {
      {"mm",
       {{4, 6}, {6, 5}},
       [](const Tensors& in) { return in[0].mm(in[1]); },
       [=](const Tensors& in) { return float_of(n(in[0]).mm(n(in[1]))); }},
      {"addmm",
       {{4, 6}, {5, 6}, {5}},
       [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); },
       [=](const Tensors& in) { return float_of(at::addmm(n(in[2]), n(in[0]), n(in[1].t()))); }},
      {"bmm",
       {{2, 4, 6}, {2, 6, 5}},
       [](const Tensors& in) { return in[0].matmul(in[1]); },
       [=](const Tensors& in) { return float_of(n(in[0]).bmm(n(in[1]))); }},
      {"baddbmm",
       {{2, 4, 5}, {2, 4, 6}, {2, 6, 5}},
       [](const Tensors& in) { return at::baddbmm(in[0], in[1], in[2]); },
       [=](const Tensors& in) { return float_of(at::baddbmm(n(in[0]), n(in[1]), n(in[2]))); }},
      {"convolution",
       {{2, 3, 8, 8}, {4, 3, 3, 3}, {4}},
       [](const Tensors& in) { return at::conv2d(in[0], in[1], in[2]); },
       [=](const Tensors& in) { return float_of(at::conv2d(n(in[0]), n(in[1]), n(in[2]))); }},
      {"_scaled_dot_product_flash_attention_for_cpu",
       {{2, 2, 8, 4}, {2, 2, 8, 4}, {2, 2, 8, 4}},
       [](const Tensors& in) { return at::scaled_dot_product_attention(in[0], in[1], in[2]); },
       [=](const Tensors& in) {
         return float_of(at::scaled_dot_product_attention(n(in[0]), n(in[1]), n(in[2])));
       }},
  };
}

Tensor spectrally_normed(const Tensor& weight) {
  Tensor u = at::ones({weight.size(0), 1}), v;
  {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      v = weight.t().mm(u);
      v = v / v.norm();
      u = weight.mm(v);
      u = u / u.norm();
    }
  }
  return weight / u.t().mm(weight.mm(v));
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.mm(x); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST_SUITE("product formats") {
  TEST_CASE("a product in a narrow type is the product with its casts written by hand") {
    for (const ProductCase& it : products()) {
      CAPTURE(it.name);
      const Tensors in = inputs(it.shapes);
      const Outcome found = run(it.written, in, at::kBFloat16);
      CHECK(same(found.values, run(it.by_hand, in, std::nullopt).values));
      CHECK(found.narrow == std::vector<std::string>{it.name});
      CHECK((found.values[0].scalar_type() == at::kFloat));
      CHECK_FALSE(same(found.values, run(it.written, in, std::nullopt).values));
    }
  }

  TEST_CASE("an attention mask keeps its float values, which fp16 could not hold") {
    const Tensors in = inputs({{2, 2, 8, 4}, {2, 2, 8, 4}, {2, 2, 8, 4}});
    const Tensor mask = at::zeros({8, 8});
    mask.slice(1, 4).fill_(-1e9);
    mask[3].fill_(-1e9);  // a row without any place
    const auto masked = [&](const Tensors& t) {
      return at::scaled_dot_product_attention(t[0], t[1], t[2], mask);
    };
    const Outcome found = run(masked, in, at::kHalf);
    CHECK(found.narrow.size() == 1);
    CHECK(at::isfinite(found.values[0]).all().item<bool>());
  }

  TEST_CASE("whatever is no product, or the program's own business, keeps its bits") {
    const Program programs[] = {
        [](const Tensors& in) {  // norms, softmax, sums, losses
          const Tensor x = at::layer_norm(in[0], {6}).softmax(-1).log_softmax(-1);
          return (x * x).sum(0).norm() + at::mse_loss(in[0], in[2]) + x.exp().mean();
        },
        [](const Tensors& in) {
          const at::NoGradGuard no_grad;
          return in[0].mm(in[1]);
        },
        [](const Tensors& in) { return in[0].to(at::kDouble).mm(in[1].to(at::kDouble)); },
        [](const Tensors& in) { return in[0].narrow(0, 0, 1).mm(in[1]); },
        [](const Tensors& in) { return in[0].mv(in[1].select(1, 0)); },
        [](const Tensors& in) { return spectrally_normed(in[0]); },
        [](const Tensors& in) { return Doubled::apply(in[3]); },
        [](const Tensors& in) {
          const PrecisionScope own(at::kCPU, Precision::fp32);
          return in[0].mm(in[1]);
        },
        [](const Tensors& in) {
          const PrecisionScope own(at::kCPU, Precision::fp16);
          return at::linear(in[0], in[1].t()).to(at::kFloat);
        },
        [](const Tensors& in) {
          at::autocast::set_autocast_enabled(at::kCPU, true);
          const Tensor y = in[0].mm(in[1]).to(at::kFloat);
          at::autocast::set_autocast_enabled(at::kCPU, false);
          at::autocast::clear_cache();
          return y;
        },
    };
    const Tensors in = inputs({{4, 6}, {6, 5}, {4, 6}, {4, 4}});
    for (std::size_t p = 0; p < std::size(programs); ++p) {
      CAPTURE(p);
      const Outcome narrow = run(programs[p], in, at::kBFloat16);
      CHECK(same(narrow.values, run(programs[p], in, std::nullopt).values));
    }
  }

  TEST_CASE(
      "parameters are cast first, so a run of the same operators enters a block where it did") {
    const Tensors in = inputs({{2, 3, 8, 8}, {4, 3, 3, 3}});
    const Tensor x = in[0] * 2;
    std::vector<const c10::StorageImpl*> cast;
    class Casts final : public OperatorListener {
     public:
      explicit Casts(std::vector<const c10::StorageImpl*>& cast) : cast_(cast) {}
      std::optional<ProductFormat> product_format() const override {
        return ProductFormat{at::kBFloat16};
      }
      bool wants_calls() const override { return true; }
      void begin(const OperatorCall& call) override {
        if (call.handle.operator_name().name == "aten::_to_copy")
          cast_.push_back(storage_impl(call.arguments[0].toTensor()));
      }

     private:
      std::vector<const c10::StorageImpl*>& cast_;
    } casts(cast);
    {
      const StreamScope shown({&casts});
      static_cast<void>(at::conv2d(x, in[1]));
    }
    REQUIRE(cast.size() == (x.is_cpu() ? 3 : 2));  // the third is the result
    CHECK(cast[0] == storage_impl(in[1]));
    CHECK(cast[1] == storage_impl(x));
  }

  TEST_CASE("a product that throws leaves the stream as it was") {
    const Tensors in = inputs({{4, 6}, {5, 6}});
    Narrowing listener(at::kBFloat16);
    const StreamScope shown({&listener});
    CHECK_THROWS(static_cast<void>(in[0].mm(in[1])));
    static_cast<void>(in[0].mm(in[1].t()));
    CHECK(listener.narrow().back() == "mm");
  }
}

}  // namespace
