#include "coxswain/master_weights.h"

#include <torch/torch.h>

#include <cmath>
#include <string>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/loss_scaler.h"

#include <doctest/doctest.h>

namespace {

using cox::AdamW;
using cox::MasterWeights;
using cox::NamedTensor;
using Tensors = std::vector<at::Tensor>;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(8, 32));
    second = register_module("second", torch::nn::Linear(32, 1));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor hidden = torch::tanh(first(x.to(first->weight.scalar_type())));
    return torch::mse_loss(second(hidden).to(at::kFloat), y);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

struct Data {
  at::Tensor x = (torch::manual_seed(9), torch::randn({64, 8}));
  at::Tensor y = torch::sin(x.sum(1, true));
};

enum class How { fp32, bf16_alone, bf16_with_masters };

Net trained(How how, int steps) {
  Net net;
  if (how != How::fp32) net->to(at::kBFloat16);
  const Data data;
  MasterWeights masters(net->parameters());
  AdamW optimizer(how == How::bf16_with_masters ? masters.tensors() : net->parameters(),
                  {.lr = 2e-4, .weight_decay = 0});
  for (int i = 0; i < steps; ++i) {
    net->loss(data.x, data.y).backward();
    if (how == How::bf16_with_masters) masters.take_gradients();
    optimizer.step();
    if (how == How::bf16_with_masters) masters.give_weights();
    optimizer.zero_grad();
  }
  return net;
}

double distance(Net& a, Net& b) {
  double squares = 0;
  const Tensors left = a->parameters();
  const Tensors right = b->parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    const double norm = (left[i].to(at::kDouble) - right[i].to(at::kDouble)).norm().item<double>();
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

TEST_SUITE("sdk.optim.master_weights") {
  TEST_CASE("a model in bf16 follows fp32 ten times closer with masters than without") {
    Net wide = trained(How::fp32, 400);
    Net alone = trained(How::bf16_alone, 400);
    Net with = trained(How::bf16_with_masters, 400);
    Net start = trained(How::fp32, 0);
    const double moved = distance(start, wide);
    CAPTURE(distance(alone, wide));
    CAPTURE(distance(with, wide));
    CAPTURE(moved);
    CHECK(moved > 0.3);
    CHECK(10 * distance(with, wide) < distance(alone, wide));
    for (const at::Tensor& p : with->parameters()) CHECK((p.scalar_type() == at::kBFloat16));
  }

  TEST_CASE("updates far below the resolution add up") {
    const at::Tensor p = at::ones({3}, at::kBFloat16).requires_grad_();
    MasterWeights masters(Tensors{p});
    torch::optim::SGD optimizer(masters.tensors(), 1.0);
    for (int i = 0; i < 64; ++i) {
      p.mutable_grad() = at::full_like(p, -0x1p-12, at::TensorOptions().requires_grad(false));
      masters.take_gradients();
      CHECK_FALSE(p.grad().defined());
      optimizer.step();
      optimizer.zero_grad();
      masters.give_weights();
    }
    CHECK(p.detach().to(at::kFloat).equal(at::full({3}, 1 + 0x1p-6)));
  }

  TEST_CASE("two runs give the same bits") {
    const Tensors once = trained(How::bf16_with_masters, 20)->parameters();
    const Tensors again = trained(How::bf16_with_masters, 20)->parameters();
    for (std::size_t i = 0; i < once.size(); ++i) CHECK(once[i].equal(again[i]));
  }

  TEST_CASE("gradients of micro-batches are summed in fp32, infinities kept") {
    const at::Tensor p = at::zeros({3}, at::kBFloat16).requires_grad_();
    MasterWeights masters(Tensors{p});
    masters.take_gradients();
    CHECK_FALSE(masters.tensors()[0].grad().defined());
    for (const float gradient : {256.f, 1.f, INFINITY}) {
      p.mutable_grad() = at::tensor({1.f, gradient, 0.f}).to(at::kBFloat16);
      masters.take_gradients();
      if (gradient == 1) CHECK(masters.tensors()[0].grad().equal(at::tensor({2.f, 257.f, 0.f})));
    }
    CHECK(masters.tensors()[0].grad().equal(at::tensor({3.f, INFINITY, 0.f})));
  }

  TEST_CASE("wide parameters are their own masters and frozen ones stay frozen") {
    const at::Tensor wide = at::ones({2}).requires_grad_();
    const at::Tensor frozen = at::ones({2}, at::kHalf);
    MasterWeights masters(std::vector<NamedTensor>{{"wide", wide}, {"frozen", frozen}});
    CHECK(masters.tensors()[0].is_same(wide));
    CHECK_FALSE(masters.tensors()[1].requires_grad());
    CHECK(masters.named()[1].name == "frozen");
    wide.mutable_grad() = at::ones({2});
    masters.take_gradients();
    CHECK(wide.grad().equal(at::ones({2})));
    CHECK(masters.state().size() == 1);
  }

  TEST_CASE("a scaler unscales the masters' gradients of an fp16 model") {
    const at::Tensor p = at::ones({3}, at::kHalf).requires_grad_();
    MasterWeights masters(Tensors{p});
    AdamW optimizer(masters.tensors());
    cox::LossScaler scaler(cox::ScalerRules{.initial_scale = 1024});
    scaler.scale((p * at::tensor({1e-7f, 1.f, 2.f})).sum()).backward();
    masters.take_gradients();
    CHECK(scaler.step(optimizer));
    const at::Tensor gradient = masters.tensors()[0].grad();
    CHECK(gradient.allclose(at::tensor({1e-7f, 1.f, 2.f}), 0.01, 0));
    scaler.update();
    optimizer.zero_grad();
    scaler.scale((p * 1e3).sum()).backward();  // 1,024,000 is beyond fp16
    masters.take_gradients();
    CHECK_FALSE(scaler.step(optimizer));
  }

  TEST_CASE("saved masters go on with all their bits, and another model's are refused") {
    const at::Tensor p = at::ones({2, 2}, at::kBFloat16).requires_grad_();
    MasterWeights masters(std::vector<NamedTensor>{{"w", p}});
    {
      const at::NoGradGuard no_grad;
      masters.tensors()[0].add_(0x1p-10);
    }
    std::vector<NamedTensor> saved = masters.state();
    REQUIRE(saved.size() == 1);
    CHECK(saved[0].name == "master.w");
    saved[0].tensor = saved[0].tensor.detach().clone() + 2;
    CHECK(masters.load_state(saved).ok());
    CHECK(masters.tensors()[0].detach().equal(at::full({2, 2}, 3 + 0x1p-10)));
    CHECK(p.detach().equal(at::full({2, 2}, 3, at::kBFloat16)));
    const MasterWeights other(std::vector<NamedTensor>{{"v", at::ones({2, 2}, at::kHalf)}});
    const cox::Status refused = masters.load_state(other.state());
    CHECK(refused.message().find("MasterWeights state: the tensors do not fit") == 0);
    CHECK(refused.message().find("missing: master.w; unexpected: master.v") != std::string::npos);
    CHECK(p.detach().equal(at::full({2, 2}, 3, at::kBFloat16)));
    {
      const at::NoGradGuard no_grad;
      p.fill_(7);
    }
    masters.take_weights();
    CHECK(masters.tensors()[0].detach().equal(at::full({2, 2}, 7.f)));
  }

  TEST_CASE("parameters that cannot have masters are named") {
    const auto refused = [](const NamedTensor& named) {
      CHECK_THROWS_WITH_AS(MasterWeights(std::vector<NamedTensor>{named}),
                           doctest::Contains("MasterWeights: parameter w: expected"), cox::Error);
    };
    refused({"w", {}});
    refused({"w", at::ones({2}, at::kLong)});
    refused({"w", at::ones({4, 4}, at::kBFloat16).slice(1, 0, 2)});
    const at::Tensor p = at::ones({2}, at::kBFloat16);
    CHECK_THROWS_WITH_AS(MasterWeights(Tensors{p, p}), doctest::Contains("given twice"),
                         cox::Error);
  }
}

}  // namespace
