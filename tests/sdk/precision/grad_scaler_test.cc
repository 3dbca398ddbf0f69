// The recorded behaviour of Python's GradScaler, step by step: the rule alone, and LossScaler with
// real optimizers on the model of record_grad_scaler.py.
#include <torch/torch.h>

#include <bit>
#include <memory>

#include "coxswain/adamw.h"
#include "coxswain/loss_scaler.h"
#include "tests/sdk/precision/grad_scaler_record.h"

#include <doctest/doctest.h>

namespace {

using grad_scaler::Sequence;
using grad_scaler::Step;

const std::vector<Sequence>& recorded() {
  static const std::vector<Sequence> sequences = grad_scaler::read(COX_GRAD_SCALER_RECORD);
  return sequences;
}

at::Tensor tensor_of(const std::array<float, 4>& values) {
  return at::tensor(at::ArrayRef<float>(values.data(), values.size()));
}

// One training run beside the recorded one.
class Run {
 public:
  Run(const Sequence& sequence, cox::ScalerSync sync)
      : scaler(sequence.rules, sync),
        weights(tensor_of(grad_scaler::kStart).requires_grad_()),
        is_adamw_(sequence.optimizer == "adamw"),
        adamw_({weights}, {.lr = 0.01, .weight_decay = 0.1}),
        sgd_({weights}, torch::optim::SGDOptions(0.01)) {}

  // Returns whether the optimizer stepped, by the result of step().
  bool step(float factor) {
    weights.mutable_grad().reset();
    const at::Tensor difference = weights - tensor_of(grad_scaler::kTarget);
    scaler.scale((difference * difference).sum() * factor).backward();
    const bool stepped = is_adamw_ ? scaler.step(adamw_) : scaler.step(sgd_);
    scaler.update();
    return stepped;
  }

  std::vector<float> values() const {
    const auto* first = weights.const_data_ptr<float>();
    return {first, first + 4};
  }

  cox::LossScaler scaler;
  at::Tensor weights;

 private:
  bool is_adamw_;
  cox::AdamW adamw_;
  torch::optim::SGD sgd_;
};

// SGD in fp32 is the same everywhere. Torch's fused AdamW kernel may round differently on other
// vector units.
bool same(float ours, float theirs, const std::string& optimizer) {
  if (optimizer == "sgd")
    return std::bit_cast<std::uint32_t>(ours) == std::bit_cast<std::uint32_t>(theirs);
  return std::abs(ours - theirs) <= 1e-6f * std::abs(theirs);
}

std::size_t repeat(const Sequence& sequence, cox::ScalerSync sync) {
  Run run(sequence, sync);
  for (std::size_t i = 0; i < sequence.steps.size(); ++i) {
    const Step& want = sequence.steps[i];
    CAPTURE(i);
    const std::vector<float> before = run.values();
    const bool stepped = run.step(want.factor);
    if (sync == cox::ScalerSync::host) REQUIRE(stepped == !want.skipped);
    if (want.skipped) REQUIRE(run.values() == before);
    REQUIRE(run.scaler.value().scale == want.scale);
    REQUIRE(run.scaler.value().clean_steps == want.tracker);
    if (!sequence.has_weights) continue;
    for (std::size_t w = 0; w < 4; ++w) {
      REQUIRE(same(run.values()[w], want.weights[w], sequence.optimizer));
    }
  }
  return sequence.steps.size();
}

TEST_SUITE("sdk.precision.grad_scaler") {
  TEST_CASE("the record holds the sequences that it should") {
    std::size_t skipped = 0, steps = 0;
    for (const Sequence& sequence : recorded()) {
      steps += sequence.steps.size();
      for (const Step& step : sequence.steps) skipped += step.skipped;
    }
    CHECK(recorded().size() == 28);
    CHECK(steps > 20000);
    CHECK(skipped > 500);
  }

  TEST_CASE("advance() gives GradScaler's scale and growth tracker after every step") {
    for (const Sequence& sequence : recorded()) {
      CAPTURE(sequence.name);
      cox::ScalerState state = cox::initial_state(sequence.rules);
      for (std::size_t i = 0; i < sequence.steps.size(); ++i) {
        const Step& want = sequence.steps[i];
        CAPTURE(i);
        state = cox::advance(state, sequence.rules, {.overflow = want.skipped, .amax = 0});
        REQUIRE(state.scale == want.scale);
        REQUIRE(state.clean_steps == want.tracker);
      }
    }
  }

  TEST_CASE("LossScaler skips, scales and trains as GradScaler did") {
    std::size_t steps = 0;
    for (const Sequence& sequence : recorded()) {
      CAPTURE(sequence.name);
      steps += repeat(sequence, cox::ScalerSync::host);
    }
    CHECK(steps > 20000);
  }

  TEST_CASE("and so it does when the host never looks") {
    std::size_t steps = 0;
    for (Sequence sequence : recorded()) {
      if (sequence.optimizer != "adamw") continue;
      CAPTURE(sequence.name);
      sequence.rules.max_scale = 0x1p126f;  // twice this scale is finite
      if (sequence.name.starts_with("grows_too_far"))
        CHECK(sequence.steps.back().scale <= 0x1p126f);
      steps += repeat(sequence, cox::ScalerSync::device);
    }
    CHECK(steps > 500);
  }
}

}  // namespace
