// Number formats of blocks from a program's view: settings, scaled losses, requests during
// training, and refusals with their reasons.
#include "coxswain/precision.h"

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "product_probe.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/training/capabilities.h"
#include "solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kWidth = 16;

// Records the format of its computation.
struct LookingImpl : torch::nn::Module {
  torch::nn::Linear widen{register_module("widen", torch::nn::Linear(kWidth, 2 * kWidth))};
  torch::nn::Linear narrow{register_module("narrow", torch::nn::Linear(2 * kWidth, kWidth))};
  Precision seen = Precision::fp32;
  std::function<at::Tensor(Precision, const at::Tensor&)> twist;  // applied to the result

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor wide = widen(x);
    seen = cox::test::format_of_products(narrow->weight);
    const at::Tensor y = narrow(torch::dropout(torch::gelu(wide), 0.1, is_training()));
    return twist ? twist(seen, y) : y;
  }
};
TORCH_MODULE(Looking);

struct Net {
  std::vector<Looking> blocks;
  torch::nn::Sequential model;

  explicit Net(int size = 3) {
    torch::manual_seed(3);
    for (int i = 0; i < size; ++i) model->push_back(blocks.emplace_back());
  }
  at::Tensor loss(const at::Tensor& x) { return model->forward(x).square().mean(); }
};

at::Tensor sample() {
  torch::manual_seed(4);
  return torch::randn({8, kWidth});
}

// Returns "bf16 fp32 bf16": the blocks' formats, in order.
std::string seen_formats(const Net& net) {
  std::string formats;
  for (const Looking& block : net.blocks) {
    formats += (formats.empty() ? "" : " ") + std::string(to_string(block->seen));
  }
  return formats;
}

// The loop of a test: a session, a reducer and no optimizer.
struct Loop {
  Net net;
  Session session;
  Reducer reducer;

  explicit Loop(const std::vector<std::string>& flags)
      : session(solo_session(flags)), reducer(session, *net.model) {}

  ReductionOutcome step(double factor = 1) { return step(session.step(), factor); }

  ReductionOutcome step(StepScope step, double factor = 1) {
    for (const at::Tensor& p : net.model->parameters()) p.mutable_grad().reset();
    torch::manual_seed(9);
    reducer.backward(step, net.loss(sample()) * factor, 8);
    return reducer.average(step);
  }

  // Like a trainer, measures formats in the open first step.
  ReductionOutcome step_with_trial() {
    auto step = session.step();
    session.calibrate(*net.model, [this] { return net.loss(sample()); });
    return this->step(std::move(step));
  }

  ScalerState scaler() { return loss_scale().state().value(); }
  cox::detail::LossScale& loss_scale() { return session.capabilities().loss_scale; }
  cox::detail::NumericsWatch& numerics() { return session.capabilities().numerics; }
};

std::span<const BlockEvidence> evidence_of_step(cox::detail::NumericsWatch& numerics) {
  cox::detail::StepOutput output;
  numerics.end_step({RankId(0), RoundId(0), Plan{}}, output);
  return output.evidence;
}

std::vector<at::Tensor> gradients(const Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : net.model->parameters()) {
    if (p.grad().defined()) all.push_back(p.grad().clone());
  }
  return all;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = torch::equal(a[i], b[i]);
  return all;
}

// Slows down fp32 so much that bf16 is surely faster.
at::Tensor linger_in_fp32(Precision format, const at::Tensor& y) {
  if (format == Precision::fp32) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return y;
}

struct InHalf final : cox::detail::OperatorListener {
  std::optional<cox::detail::ProductFormat> product_format() const override {
    return cox::detail::ProductFormat{at::kHalf};
  }
};

struct Samples final : Dataset {
  std::int64_t size() const override { return 64; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    return {torch::ones({rows, kWidth}), torch::zeros({rows, 1}), rows};
  }
};

std::string error_of(const std::vector<std::string>& flags) {
  try {
    Loop loop(flags);
    loop.step();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_SUITE("sdk.session precision") {
  TEST_CASE("every block computes in the format of the settings, and what follows it sees fp32") {
    for (const Precision format : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      CAPTURE(to_string(format));
      Loop loop({"--cox.precision.format=" + std::string(to_string(format))});
      const ReductionOutcome outcome = loop.step();
      CHECK(outcome.finite);
      const std::string name(to_string(format));
      CHECK(seen_formats(loop.net) == name + " " + name + " " + name);
      const at::Tensor behind = loop.net.model->forward(sample());
      CHECK((behind.scalar_type() == at::kFloat));
    }
  }

  TEST_CASE("inside a scope of the program's own the scope's format counts") {
    for (const char* format : {"fp16", "fp8"}) {
      Loop loop({std::string("--cox.precision.format=") + format});
      {
        const at::Tensor& weight = loop.net.blocks[0]->narrow->weight;
        const PrecisionScope scope(weight.device().type(), Precision::bf16);
        loop.step();
      }
      CHECK(seen_formats(loop.net) == "bf16 bf16 bf16");
    }
  }

  TEST_CASE("a block may be forced to another format than the rest") {
    Loop loop({"--cox.precision.format=bf16", "--cox.precision.force=1=fp32"});
    CHECK(loop.step().finite);
    CHECK(seen_formats(loop.net) == "bf16 fp32 bf16");
  }

  TEST_CASE("gradients of fp16 blocks come out of the reducer without the loss scale") {
    Loop loop({"--cox.precision.format=fp16", "--cox.loss_scale.initial=1024"});
    loop.step();
    const auto reduced = gradients(loop.net);
    Net plain;
    torch::manual_seed(9);
    at::Tensor loss;
    {
      InHalf listener;
      const cox::detail::StreamScope shown({&listener});
      loss = plain.loss(sample());
    }
    (loss * 1024).backward();
    std::vector<at::Tensor> by_hand = gradients(plain);
    for (at::Tensor& gradient : by_hand) gradient /= 1024;
    CHECK(equal(reduced, by_hand));
  }

  TEST_CASE("an overflow skips the step and lowers the scale; clean steps raise it again") {
    Loop loop({"--cox.precision.format=fp16", "--cox.loss_scale.initial=1024",
               "--cox.loss_scale.growth_interval=3"});
    const double too_large = 1e30;
    CHECK_FALSE(loop.step(too_large).finite);
    const float lower = loop.scaler().scale;
    CHECK(lower <= 512);
    CHECK_FALSE(loop.step(too_large).finite);
    const float lowest = loop.scaler().scale;
    CHECK(lowest < lower);
    for (int i = 0; i < 3; ++i) CHECK(loop.step().finite);
    CHECK(loop.scaler().scale > lowest);
  }

  TEST_CASE("no memory action changes a bit of a step in bf16, fp16 or fp8") {
    for (const char* format : {"bf16", "fp16", "fp8"}) {
      CAPTURE(format);
      const std::string setting = std::string("--cox.precision.format=") + format;
      Loop kept({setting});
      Loop recomputed({setting, "--cox.memory.force=*=recompute"});
      kept.step();
      recomputed.session.calibrate(*recomputed.net.model,
                                   [&] { return recomputed.net.loss(sample()); });
      recomputed.step();
      CHECK(equal(gradients(kept.net), gradients(recomputed.net)));
    }
  }

  TEST_CASE("a request for another format is answered by a plan, and ends when it is released") {
    Loop loop({"--cox.precision.format=bf16"});
    const auto steps_until = [&](Precision wanted) {
      for (int i = 0; i < 2000; ++i) {
        loop.step();
        if (loop.net.blocks[1]->seen == wanted) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return false;
    };
    CHECK(steps_until(Precision::bf16));
    loop.session.force_precision("1", Precision::fp32);
    CHECK(steps_until(Precision::fp32));
    CHECK(loop.net.blocks[0]->seen == Precision::bf16);
    loop.session.release_precision("1");
    CHECK(steps_until(Precision::bf16));
  }

  TEST_CASE("formats are measured before the first step where blocks choose by themselves") {
    Loop loop({"--cox.precision.format=auto"});
    loop.session.calibrate(*loop.net.model, [&] { return loop.net.loss(sample()); });
    for (const at::Tensor& p : loop.net.model->parameters()) CHECK_FALSE(p.grad().defined());
    CHECK(loop.step().finite);
  }

  TEST_CASE("a step in which formats are measured runs in the formats that follow from it") {
    Loop loop({"--cox.precision.format=auto"});
    for (Looking& block : loop.net.blocks) block->twist = linger_in_fp32;
    CHECK(loop.step_with_trial().finite);
    CHECK((loop.session.plan().precision == std::vector<Precision>(3, Precision::bf16)));
    CHECK(seen_formats(loop.net) == "bf16 bf16 bf16");
  }

  TEST_CASE("a trial that fails in one format leaves the blocks in those of the plan") {
    Loop loop({"--cox.precision.format=auto"});
    loop.net.blocks[1]->twist = [](Precision format, const at::Tensor& y) {
      if (format == Precision::fp16) throw std::runtime_error("no fp16 here");
      return y;
    };
    CHECK(loop.step_with_trial().finite);
    CHECK(seen_formats(loop.net) == "fp32 fp32 fp32");
  }

  TEST_CASE("an overflow in the trial of a format is no overflow of the step") {
    Loop loop({"--cox.precision.format=auto"});
    for (Looking& block : loop.net.blocks) block->twist = linger_in_fp32;
    loop.net.blocks[1]->twist = [](Precision format, const at::Tensor& y) {
      const double infinity = std::numeric_limits<double>::infinity();
      return format == Precision::fp16 ? y * infinity : linger_in_fp32(format, y);
    };
    CHECK(loop.step_with_trial().finite);
    const auto& verdict = loop.numerics().health().verdict();
    CHECK((verdict.where == cox::detail::HealthVerdict::Where::nothing));
  }

  TEST_CASE("after a rollback the loss scale is no larger than what overflowed") {
    Loop loop({"--cox.precision.format=fp16", "--cox.loss_scale.initial=1024"});
    CHECK(loop.step().finite);
    const ScalerState before = loop.scaler();
    CHECK_FALSE(loop.step(1e30).finite);
    const ScalerState after = loop.scaler();
    REQUIRE(after.scale < before.scale);
    loop.loss_scale().roll_back(std::nullopt);  // to a state before fp16
    CHECK((loop.scaler() == after));
    loop.loss_scale().roll_back(before);
    CHECK(loop.scaler().scale == after.scale);
    CHECK(loop.scaler().clean_steps == before.clean_steps);
    CHECK(loop.step().finite);
  }

  TEST_CASE("a second reducer watches the blocks anew") {
    Loop loop({"--cox.precision.format=fp8"});
    Reducer again(loop.session, loop.net.model->parameters());
    auto step = loop.session.step();
    again.backward(step, loop.net.loss(sample()), 8);
    again.average(step);
    const auto seen = evidence_of_step(loop.numerics());
    REQUIRE(seen.size() == 3);
    for (const BlockEvidence& block : seen) CHECK(block.sampled > 0);
  }

  TEST_CASE("a rule that fits no block is an error in every section, and names those that exist") {
    for (const std::string key : {"memory.force", "memory.forbid", "precision.force",
                                  "precision.forbid", "precision.sample_blocks"}) {
      CAPTURE(key);
      const std::string value = key.starts_with("memory") ? "=recompute" : "=bf16";
      const std::string rule = key.ends_with("blocks") ? "11" : "11" + value;
      const std::string refused =
          error_of({"--cox." + key + "=" + rule, "--cox.precision.format=bf16"});
      CAPTURE(refused);
      CHECK(refused.find(key + ": expected the name of a block, found " + rule) !=
            std::string::npos);
      CHECK(refused.find("which fits none of 3; the nearest are 1, 0, 2") != std::string::npos);
    }
    CHECK(error_of({"--cox.memory.budget_of_rank=7:2GiB"}).find("found rank 7") !=
          std::string::npos);
  }

  TEST_CASE("a setting that cannot be is refused with what was expected") {
    CHECK(error_of({"--cox.precision.format=fp64"}).find("fp32") != std::string::npos);
    CHECK(error_of({"--cox.precision.force=nowhere=bf16"}).find("nowhere") != std::string::npos);
    CHECK(error_of({"--cox.loss_scale.initial=-1"}).find("loss_scale.initial") !=
          std::string::npos);
    CHECK(error_of({"--cox.loss_scale.min=8", "--cox.loss_scale.max=4"}).find("max_scale") !=
          std::string::npos);
    Loop loop({"--cox.precision.format=bf16"});
    CHECK_THROWS_AS(loop.session.force_precision("nowhere", Precision::bf16), Error);
  }
}
