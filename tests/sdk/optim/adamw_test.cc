#include "coxswain/adamw.h"

#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "coxswain/error.h"

#include <doctest/doctest.h>

namespace {

using cox::AdamW;
using cox::AdamWOptions;
using cox::NamedTensor;
using Tensors = std::vector<at::Tensor>;

Tensors parameters(std::uint64_t seed, at::ScalarType type = torch::kFloat) {
  torch::manual_seed(seed);
  Tensors out;
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{7, 33}, {33}, {1}, {4, 5, 6}, {}}) {
    out.push_back(torch::randn(shape, type).set_requires_grad(true));
  }
  return out;
}

// Sets the same gradients for the same step on every call.
void set_gradients(const Tensors& tensors, int step) {
  torch::manual_seed(1000 + static_cast<std::uint64_t>(step));
  for (const at::Tensor& tensor : tensors) {
    tensor.mutable_grad() = torch::randn_like(tensor, torch::TensorOptions().requires_grad(false));
  }
}

double largest_difference(const Tensors& a, const Tensors& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, (a[i] - b[i]).detach().abs().max().item<double>());
  }
  return worst;
}

bool equal(const Tensors& a, const Tensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return a.size() == b.size();
}

const NamedTensor* find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& named : tensors) {
    if (named.name == name) return &named;
  }
  return nullptr;
}

TEST_SUITE("sdk.optim") {
  TEST_CASE("fifty steps give what torch's own AdamW gives") {
    struct Case {
      at::ScalarType type;
      double limit;
    };
    for (const Case& c : {Case{torch::kDouble, 1e-14}, Case{torch::kFloat, 2e-6}}) {
      const Tensors ours = parameters(1, c.type);
      const Tensors theirs = parameters(1, c.type);
      const AdamWOptions options{
          .lr = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-7, .weight_decay = 0.1};
      AdamW optimizer(ours, options);
      torch::optim::AdamW reference(
          theirs, torch::optim::AdamWOptions(3e-3).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.1));
      for (int step = 0; step < 50; ++step) {
        set_gradients(ours, step);
        set_gradients(theirs, step);
        optimizer.step();
        reference.step();
      }
      CHECK(largest_difference(ours, theirs) < c.limit);
      CHECK(largest_difference(ours, parameters(1, c.type)) > 0.05);
    }
  }

  TEST_CASE("one step follows the formula") {
    const at::Tensor p = torch::tensor({2.0}, torch::kDouble).set_requires_grad(true);
    AdamW optimizer(Tensors{p}, {.lr = 0.1, .weight_decay = 0.5});
    p.mutable_grad() = torch::tensor({-4.0}, torch::kDouble);
    optimizer.step();
    // 2 - 0.1 * 0.5 * 2, then a first step of size lr against the sign of the gradient.
    CHECK(p.item<double>() == doctest::Approx(1.9 + 0.1).epsilon(1e-8));
  }

  TEST_CASE("each group has its own options and lr can change between steps") {
    const at::Tensor a = torch::ones({3}).set_requires_grad(true);
    const at::Tensor b = torch::ones({3}).set_requires_grad(true);
    AdamW optimizer({{.parameters = {{"a", a}}, .options = {.lr = 0.5, .weight_decay = 0.1}},
                     {.parameters = {{"b", b}}, .options = {.lr = 0.5, .weight_decay = 0}}});
    for (const at::Tensor& p : {a, b}) p.mutable_grad() = torch::zeros({3});
    optimizer.step();
    CHECK(a.detach().allclose(torch::full({3}, 0.95)));
    CHECK(b.detach().equal(torch::ones({3})));
    optimizer.set_lr(0);
    optimizer.step();
    CHECK(a.detach().allclose(torch::full({3}, 0.95)));
    optimizer.set_lr(0, 1.0);
    CHECK(optimizer.options(0).lr == 1.0);
    CHECK(optimizer.options(1).lr == 0);
    optimizer.step();
    CHECK(a.detach().allclose(torch::full({3}, 0.95 * 0.9)));
  }

  TEST_CASE("a parameter without a gradient stays as it is and counts no step") {
    const Tensors p = parameters(2);
    const at::Tensor before = p[0].detach().clone();
    AdamW optimizer(p);
    set_gradients(p, 0);
    p[0].mutable_grad().reset();
    optimizer.step();
    CHECK(p[0].detach().equal(before));
    CHECK(find(optimizer.state(), "exp_avg.0") == nullptr);
    REQUIRE(find(optimizer.state(), "step.1"));
    CHECK(find(optimizer.state(), "step.1")->tensor.item<float>() == 1);
    set_gradients(p, 1);
    optimizer.step();
    CHECK(find(optimizer.state(), "step.0")->tensor.item<float>() == 1);
    CHECK(find(optimizer.state(), "step.1")->tensor.item<float>() == 2);
  }

  TEST_CASE("a gradient laid out in another way than its parameter is used by its values") {
    const at::Tensor a = torch::zeros({4, 3}).set_requires_grad(true);
    const at::Tensor b = torch::zeros({4, 3}).set_requires_grad(true);
    const at::Tensor gradient = torch::arange(12, torch::kFloat).reshape({4, 3}) - 5;
    a.mutable_grad() = gradient.clone();
    b.mutable_grad() = gradient.t().contiguous().t();
    AdamW(Tensors{a}).step();
    AdamW(Tensors{b}).step();
    CHECK(a.equal(b));
  }

  TEST_CASE(
      "with found_inf the step changes nothing, with grad_scale gradients are divided by it") {
    const Tensors scaled = parameters(3);
    const Tensors plain = parameters(3);
    AdamW optimizer(scaled);
    AdamW reference(plain);
    const at::Tensor scale = torch::tensor({1024.0F});
    const at::Tensor fine = torch::zeros({1});
    const at::Tensor overflow = torch::ones({1});
    for (int step = 0; step < 4; ++step) {
      set_gradients(plain, step);
      set_gradients(scaled, step);
      for (const at::Tensor& p : scaled) p.mutable_grad().mul_(1024.0F);
      if (step == 2) {
        scaled[1].mutable_grad().fill_(std::numeric_limits<float>::infinity());
        optimizer.step({.grad_scale = scale, .found_inf = overflow});
      } else {
        reference.step();
        optimizer.step({.grad_scale = scale, .found_inf = fine});
      }
    }
    CHECK(equal(scaled, plain));
    CHECK(find(optimizer.state(), "step.0")->tensor.item<float>() == 3);
  }

  TEST_CASE("zero_grad drops the gradients or keeps their memory") {
    const Tensors p = parameters(4);
    AdamW optimizer(p);
    const at::Tensor bucket = torch::ones({300});
    set_gradients(p, 0);
    p[0].mutable_grad() = bucket.narrow(0, 0, 7 * 33).view({7, 33});
    optimizer.zero_grad(cox::ZeroGrad::zeros);
    CHECK(bucket.sum().item<float>() == 300 - 7 * 33);
    CHECK(p[0].grad().data_ptr() == bucket.data_ptr());
    CHECK(p[1].grad().abs().sum().item<float>() == 0);
    optimizer.zero_grad();
    CHECK_FALSE(p[0].grad().defined());
  }

  TEST_CASE("an optimizer that takes over saved state goes on bit for bit") {
    const Tensors ours = parameters(5);
    const Tensors resumed = parameters(5);
    AdamW optimizer(ours, {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      set_gradients(ours, step);
      ours[2].mutable_grad().reset();  // one parameter has no state yet
      optimizer.step();
    }
    AdamW other(resumed, {.lr = 1e-2});
    REQUIRE(other.load_state(optimizer.state()).ok());
    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < ours.size(); ++i) resumed[i].copy_(ours[i]);
    }
    for (int step = 3; step < 6; ++step) {
      set_gradients(ours, step);
      set_gradients(resumed, step);
      optimizer.step();
      other.step();
    }
    CHECK(equal(ours, resumed));
  }

  TEST_CASE("state that is handed over is not copied, but for a layout that does not fit") {
    const at::Tensor p = torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
    AdamW optimizer({{.parameters = {{"w", p.set_requires_grad(true)}}, .options = {}}});
    const at::Tensor first = torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor second = torch::rand({2, 3, 4, 5});
    const at::Tensor count = torch::full({}, 7.0f);
    const std::vector<NamedTensor> state = {
        {"exp_avg.w", first}, {"exp_avg_sq.w", second}, {"step.w", count}};
    REQUIRE(optimizer.take_state(state).ok());
    const auto taken = optimizer.state();
    REQUIRE(taken.size() == 3);
    CHECK(taken[0].tensor.data_ptr() == first.data_ptr());
    CHECK(taken[1].tensor.data_ptr() != second.data_ptr());
    CHECK(taken[1].tensor.strides() == p.strides());
    CHECK(taken[1].tensor.equal(second));
    CHECK(taken[2].tensor.item<float>() == 7);
    CHECK_FALSE(optimizer.take_state({{{"exp_avg.w", first}}}).ok());
    CHECK(optimizer.state()[0].tensor.data_ptr() == first.data_ptr());
  }

  TEST_CASE("state that does not fit is refused and changes nothing") {
    const at::Tensor p = torch::ones({2}).set_requires_grad(true);
    AdamW optimizer({{.parameters = {{"w", p}}, .options = {}}});
    p.mutable_grad() = torch::ones({2});
    optimizer.step();
    const auto before = optimizer.state();
    REQUIRE(before.size() == 3);
    CHECK(before[0].name == "exp_avg.w");
    const at::Tensor moment = before[0].tensor.clone();
    const at::Tensor two = torch::ones({2});
    const at::Tensor count = torch::ones({});
    const std::vector<std::vector<NamedTensor>> bad = {
        {{"exp_avg.w", two}, {"exp_avg_sq.w", two}},
        {{"exp_avg.v", two}, {"exp_avg_sq.v", two}, {"step.v", count}},
        {{"exp_avg.w", torch::ones({3})}, {"exp_avg_sq.w", two}, {"step.w", count}},
        {{"exp_avg.w", two}, {"exp_avg_sq.w", two}, {"step.w", torch::ones({}, torch::kLong)}},
    };
    for (const auto& state : bad) {
      CHECK(optimizer.load_state(state).code() == cox::StatusCode::invalid_argument);
    }
    CHECK(optimizer.state()[0].tensor.equal(moment));
    REQUIRE(optimizer.load_state({}).ok());
    CHECK(optimizer.state().empty());
  }

  TEST_CASE("options and parameters that can never work are refused") {
    const Tensors p = parameters(6);
    for (const AdamWOptions& options :
         {AdamWOptions{.lr = -1}, AdamWOptions{.lr = std::numeric_limits<double>::quiet_NaN()},
          AdamWOptions{.beta1 = 1}, AdamWOptions{.beta2 = -0.1}, AdamWOptions{.eps = -1},
          AdamWOptions{.weight_decay = -1}}) {
      CHECK_THROWS_AS(AdamW(p, options), cox::Error);
    }
    CHECK_THROWS_AS(AdamW(Tensors{p[0], p[0]}), cox::Error);
    CHECK_THROWS_AS(AdamW(Tensors{at::Tensor()}), cox::Error);
    CHECK_THROWS_AS(AdamW(Tensors{torch::ones({2}, torch::kLong)}), cox::Error);
    CHECK_THROWS_AS(AdamW(Tensors{torch::ones({4, 4}).slice(1, 0, 2)}), cox::Error);
    AdamW optimizer(p);
    CHECK_THROWS_AS(optimizer.set_lr(-1), cox::Error);
  }
}

}  // namespace
