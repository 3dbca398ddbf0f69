#include "coxswain/loss_scaler.h"

#include <torch/torch.h>

#include <limits>
#include <string>

#include "coxswain/adamw.h"
#include "coxswain/clip.h"
#include "coxswain/error.h"

#include <doctest/doctest.h>

namespace {

using cox::LossScaler;
using cox::NamedTensor;
using cox::ScalerRules;
using cox::ScalerSync;
using Tensors = std::vector<at::Tensor>;

constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor parameter(at::ScalarType type = at::kFloat) {
  return at::linspace(1, 2, 6).to(type).requires_grad_();
}

// Returns the message of the exception of `call`; empty if there is none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const cox::Error& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST_SUITE("sdk.precision.loss_scaler") {
  TEST_CASE("gradients behind a scaled loss are those of the loss, once unscaled") {
    const at::Tensor p = parameter();
    cox::AdamW optimizer(Tensors{p});
    LossScaler scaler(ScalerRules{.initial_scale = 1024});
    const at::Tensor loss = (p * p).sum();
    const at::Tensor scaled = scaler.scale(loss);
    CHECK(scaled.item<float>() == 1024 * loss.item<float>());
    scaled.backward();
    CHECK(p.grad().equal(2048 * p.detach()));
    scaler.unscale(optimizer);
    CHECK(p.grad().equal(2 * p.detach()));
    CHECK(cox::clip_by_global_norm(Tensors{p}, 1) > 1);
    CHECK(scaler.step(optimizer));
    scaler.update();
    CHECK(scaler.value().clean_steps == 1);
  }

  TEST_CASE("a loss in half precision is scaled in fp32, so the scaling itself cannot overflow") {
    LossScaler scaler;
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat}) {
      const at::Tensor scaled = scaler.scale(at::full({}, 8, type));
      CHECK((scaled.scalar_type() == at::kFloat));
      CHECK(scaled.item<float>() == 8 * 65536.f);
    }
    CHECK(scaler.scale(at::ones({}, at::kDouble)).dtype() == at::kDouble);
    CHECK(says(error_of([&] { (void)scaler.scale(at::ones({}, at::kLong)); }), "floating"));
    CHECK(says(error_of([&] { (void)scaler.scale({}); }), "undefined"));
  }

  TEST_CASE("each optimizer steps or skips by its own gradients, and update counts both") {
    const at::Tensor good = parameter();
    const at::Tensor bad = parameter();
    cox::AdamW first(Tensors{good});
    torch::optim::SGD second(Tensors{bad}, 0.1);
    LossScaler scaler(ScalerRules{.initial_scale = 4});
    scaler.scale(good.sum() + bad.sum() * kInf).backward();
    CHECK(scaler.step(first));
    CHECK_FALSE(scaler.step(second));
    scaler.update();
    CHECK(scaler.value().scale == 2);
    CHECK_FALSE(good.equal(parameter()));
    CHECK(bad.equal(parameter()));
  }

  TEST_CASE("parameters of an optimizer that we do not know are unscaled and judged") {
    const at::Tensor p = parameter();
    const at::Tensor wide = parameter(at::kDouble);
    const at::Tensor narrow = parameter(at::kBFloat16);
    LossScaler scaler(ScalerRules{.initial_scale = 64});
    scaler.scale(p.sum() + wide.sum() + narrow.sum()).backward();
    scaler.unscale(Tensors{p, wide, narrow});
    for (const at::Tensor& one : {p, wide, narrow}) CHECK(one.grad().eq(1).all().item<bool>());
    CHECK(scaler.is_finite());
    CHECK(scaler.is_finite());
    scaler.update();
    for (const at::Tensor& one : {p, wide, narrow}) {
      const std::string type = c10::toString(one.scalar_type());
      CAPTURE(type);
      one.mutable_grad()[3] = std::numeric_limits<double>::quiet_NaN();
      scaler.unscale(Tensors{p, wide, narrow});
      CHECK_FALSE(scaler.is_finite());
      scaler.update();
      one.mutable_grad()[3] = 1;
    }
    CHECK(scaler.value().scale == 8);
  }

  TEST_CASE("hysteresis, floor and ceiling come from the rules") {
    const at::Tensor p = parameter();
    torch::optim::SGD optimizer(Tensors{p}, 0.1);
    LossScaler scaler(ScalerRules{.initial_scale = 8,
                                  .growth_interval = 1,
                                  .min_scale = 4,
                                  .max_scale = 16,
                                  .hysteresis = 2});
    const auto step = [&](float factor) {
      optimizer.zero_grad();
      scaler.scale(p.sum() * factor).backward();
      scaler.step(optimizer);
      scaler.update();
      return scaler.value().scale;
    };
    for (const float expected : {8.f, 4.f, 4.f}) CHECK(step(kInf) == expected);
    CHECK(scaler.value().overflow_streak == 3);
    for (const float expected : {8.f, 16.f, 16.f}) CHECK(step(1) == expected);
  }

  TEST_CASE("what was saved goes on where it stopped, on host and device") {
    for (const ScalerSync sync : {ScalerSync::host, ScalerSync::device}) {
      const ScalerRules rules{.initial_scale = 256, .growth_interval = 3};
      const at::Tensor p = parameter();
      cox::AdamW optimizer(Tensors{p});
      const auto train = [&](LossScaler& scaler, int from, int to) {
        for (int i = from; i < to; ++i) {
          optimizer.zero_grad();
          scaler.scale(p.sum() * (i % 7 == 4 ? kInf : 1)).backward();
          scaler.step(optimizer);
          scaler.update();
        }
      };
      LossScaler whole(rules, sync), first(rules, sync), second(rules, sync);
      train(whole, 0, 20);
      train(first, 0, 8);
      train(second, 0, 2);  // unrelated earlier steps
      REQUIRE(second.load_state(first.state()).ok());
      CHECK(second.value() == first.value());
      train(second, 8, 20);
      CHECK(second.value() == whole.value());
      CHECK(whole.value().scale != 256);
    }
  }
}

TEST_SUITE("sdk.precision.loss_scaler_errors") {
  TEST_CASE("calls in the wrong order are told apart") {
    const at::Tensor p = parameter();
    cox::AdamW optimizer(Tensors{p});
    LossScaler scaler;
    CHECK(says(error_of([&] { scaler.update(); }), "step() or is_finite() before update()"));
    CHECK(says(error_of([&] { scaler.is_finite(); }), "unscale(parameters) before"));
    CHECK(says(error_of([&] { scaler.update(); }), "before update()"));
    scaler.scale(p.sum()).backward();
    scaler.unscale(optimizer);
    const at::Tensor unscaled = p.grad().clone();
    CHECK(says(error_of([&] { scaler.unscale(optimizer); }), "divided by the scale already"));
    CHECK(p.grad().equal(unscaled));
    CHECK(scaler.load_state(scaler.state()).code() == cox::StatusCode::failed_precondition);
    scaler.step(optimizer);
    CHECK(says(error_of([&] { scaler.step(optimizer); }), "a second one"));
    CHECK(says(error_of([&] { scaler.unscale(optimizer); }), "call update() first"));
    scaler.update();
    CHECK(says(error_of([&] { scaler.update(); }), "before update()"));
  }

  TEST_CASE("gradients that were unscaled and not stepped count in update(), as in torch") {
    const at::Tensor bad = parameter(), good = parameter();
    cox::AdamW skipped(Tensors{bad}), stepped(Tensors{good});
    LossScaler scaler({.initial_scale = 1024, .growth_interval = 2});
    scaler.scale(bad.sum() + good.sum()).backward();
    bad.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    scaler.unscale(skipped);
    CHECK(scaler.step(stepped));
    scaler.update();
    CHECK(scaler.value().scale == 512);
    for (int step = 0; step < 2; ++step) {  // unscaled, clean, and left unchanged
      bad.mutable_grad().fill_(1);
      scaler.unscale(skipped);
      scaler.update();
    }
    CHECK(scaler.value().scale == 1024);
  }

  TEST_CASE("an optimizer without gradients steps, and counts as finite") {
    cox::AdamW optimizer(Tensors{parameter()});
    LossScaler scaler({.initial_scale = 1024, .growth_interval = 1});
    CHECK(scaler.step(optimizer));
    scaler.update();
    CHECK(scaler.value().scale == 2048);
  }

  TEST_CASE("gradients in fp16 and sparse ones are refused with advice") {
    LossScaler scaler;
    const at::Tensor half = parameter(at::kHalf);
    half.mutable_grad() = at::ones_like(half);
    const std::string message = error_of([&] { scaler.unscale(Tensors{parameter(), half}); });
    CHECK(says(message, "fp16"));
    CHECK(says(message, "parameter 1"));
    CHECK(says(message, "MasterWeights"));
    CHECK(half.grad().equal(at::ones_like(half)));
    const at::Tensor table = at::ones({4, 2}).requires_grad_();
    at::embedding(table, at::tensor({1}), -1, false, true).sum().backward();
    CHECK(says(error_of([&] { scaler.unscale(Tensors{table}); }), "sparse"));
  }

  TEST_CASE("without the host only AdamW and rules that the device can follow are taken") {
    for (const ScalerRules& rules :
         {ScalerRules{.hysteresis = 2}, ScalerRules{.max_scale = 0x1p127f},
          ScalerRules{.growth_interval = 0x80000000u}}) {
      CHECK(says(error_of([&] { LossScaler(rules, ScalerSync::device); }), "ScalerSync::host"));
      CHECK(error_of([&] { LossScaler scaler(rules, ScalerSync::host); }).empty());
    }
    const at::Tensor p = parameter();
    torch::optim::SGD sgd(Tensors{p}, 0.1);
    LossScaler scaler({}, ScalerSync::device);
    scaler.scale(p.sum()).backward();
    CHECK(says(error_of([&] { scaler.step(sgd); }), "cox::AdamW"));
  }

  TEST_CASE("rules and states out of range are refused, and change nothing") {
    CHECK(says(error_of([] { LossScaler(ScalerRules{.growth_factor = 0.5f}); }), "growth_factor"));
    LossScaler scaler;
    const auto with = [&](std::size_t index, const at::Tensor& value) {
      std::vector<NamedTensor> state = scaler.state();
      state[index].tensor = value;
      return scaler.load_state(state).text();
    };
    for (const float scale : {0.f, -2.f, kInf, 0x1p25f}) {
      CHECK(says(with(0, at::full({}, scale)), "loss_scaler.scale: expected 1 to"));
    }
    CHECK(says(with(0, at::full({}, std::numeric_limits<float>::quiet_NaN())), "expected 1 to"));
    CHECK(says(with(0, at::ones({2})), "different"));
    CHECK(says(with(0, at::ones({}, at::kDouble)), "different"));
    CHECK(says(with(1, at::full({}, -1, at::kLong)), "loss_scaler.clean_steps: expected 0 to"));
    CHECK(says(with(2, at::full({}, 1L << 32, at::kLong)), "loss_scaler.overflow_streak"));
    CHECK(says(scaler.load_state(cox::AdamW(Tensors{parameter()}).state()).text(), "missing"));
    const std::vector<NamedTensor> other = {{"updates", at::zeros({}, at::kLong)}};
    CHECK(says(scaler.load_state(other).text(), "unexpected: updates"));
    CHECK(scaler.value() == cox::ScalerState{});
    CHECK(scaler.load_state(scaler.state()).ok());
  }
}

}  // namespace
