// Unmodified models in adopting loops, with number formats by block. Formats apply where the plan
// sets them and nowhere else, and memory plans change no bit under them.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/stream/models.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using cox::detail::Added;
using cox::detail::BlockWatch;
using cox::detail::counted_memory;
using cox::detail::NumericsWatch;
using stream_models::ModelCase;
using Tensors = std::vector<at::Tensor>;
using Flags = std::vector<std::string>;

constexpr std::size_t kModels = 7;
constexpr std::size_t kResnet = 0;
constexpr std::size_t kUnet = 2;
constexpr std::size_t kGpt2 = 4;

ModelCase model_at(std::size_t place) {
  return stream_models::model_at(place, 1);
}

struct Trained {
  Tensors state;                  // losses, parameters, buffers, random state
  std::int64_t kept = 0;          // live before the last step, above the first level
  std::int64_t last_peak = 0;     // in the last step, above the first level
  std::int64_t counted_peak = 0;  // in the last step, in total
  int steered = 0;                // blocks not kept by the last plan
};

Trained train(const ModelCase& it, std::uint64_t steps) {
  torch::optim::AdamW optimizer(it.model->parameters(), 0.01);
  torch::manual_seed(5);
  Trained trained;
  const std::int64_t first = counted_memory().live_bytes;
  for (std::uint64_t i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    cox::detail::reset_counted_peak();
    const std::int64_t before = counted_memory().live_bytes;
    const at::Tensor loss = it.loss(3);
    REQUIRE((loss.scalar_type() == at::kFloat));
    loss.backward();
    trained.kept = before - first;
    trained.counted_peak = counted_memory().peak_bytes;
    trained.last_peak = trained.counted_peak - before;
    optimizer.step();
    trained.state.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : it.model->parameters()) trained.state.push_back(p.detach().clone());
  for (const at::Tensor& b : it.model->buffers()) trained.state.push_back(b.detach().clone());
  trained.state.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return trained;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

Trained train_adopted(const ModelCase& it, const Flags& settings, std::uint64_t steps = 4) {
  auto session = solo_session(settings);
  session.adopt(*it.model);
  Trained trained = train(it, steps);
  const std::size_t blocks = session.capabilities().blocks.names().size();
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto action = action_of(session.plan(), RankId(0), BlockId(static_cast<BlockId::rep>(b)));
    trained.steered += action != MemoryAction::keep;
  }
  session.finish();
  return trained;
}

Flags with(Flags settings, const std::string& more) {
  settings.push_back(more);
  return settings;
}

// The newest step's evidence about the blocks.
struct Evidence final : cox::detail::Reporting {
  void end_step(const cox::detail::StepEnd&, cox::detail::StepOutput& output) override {
    newest.assign(output.evidence.begin(), output.evidence.end());
  }
  std::vector<BlockEvidence> newest;
};

at::Tensor batch() {
  torch::manual_seed(4);
  return at::randn({8, 6});
}

// Two blocks, and a way to call a linear layer.
struct Pair {
  torch::nn::Sequential model;
  std::function<at::Tensor(torch::nn::LinearImpl&, const at::Tensor&)> first, second;

  Pair() {
    torch::manual_seed(2);
    model->push_back(torch::nn::Linear(6, 12));
    model->push_back(torch::nn::Linear(12, 4));
    first =
        second = [](torch::nn::LinearImpl& layer, const at::Tensor& x) { return layer.forward(x); };
  }
  ModelCase model_case() {
    return {"pair", model.ptr(), [this](std::uint64_t) {
              const at::Tensor x = batch();
              const at::Tensor h = torch::tanh(first(*model[0]->as<torch::nn::Linear>(), x));
              return second(*model[1]->as<torch::nn::Linear>(), h).square().mean();
            }};
  }
};

at::Tensor by_hand_in_bf16(torch::nn::LinearImpl& layer, const at::Tensor& x) {
  const auto type = at::kBFloat16;
  return at::addmm(layer.bias.to(type), x.to(type), layer.weight.t().to(type)).to(at::kFloat);
}

// Trains until the first block's format is `wanted`. Returns whether that happened.
bool steps_until(Session& session, const ModelCase& it, Precision wanted) {
  torch::optim::SGD optimizer(it.model->parameters(), 0.01);
  for (int i = 0; i < 2000; ++i) {
    it.loss(3).backward();
    optimizer.step();
    optimizer.zero_grad();
    const auto& formats = session.plan().precision;
    if (!formats.empty() && formats[0] == wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::string error_of(const Flags& settings) {
  try {
    train_adopted(model_at(0), settings, 1);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Fills each matrix or filter in turn with a value that fits the format, but overflows in its
// products. Returns how many were used in training, and checks that each is named.
int name_all_overflows(std::size_t model, const char* format, double value) {
  int tried = 0;
  const std::size_t count = model_at(model).model->parameters().size();
  for (std::size_t p = 0; p < count; ++p) {
    const ModelCase it = model_at(model);
    const std::string name = it.model->named_parameters().keys()[p];
    const at::Tensor parameter = it.model->parameters()[p];
    if (parameter.dim() < 2 || name.starts_with("w")) continue;  // embeddings are no products
    auto session = solo_session({std::string("--cox.precision.format=") + format});
    session.adopt(*it.model);
    torch::optim::SGD optimizer(it.model->parameters(), 1e-6);
    const auto step = [&] {
      optimizer.zero_grad();
      it.loss(3).backward();
      optimizer.step();
    };
    step();
    {
      const at::NoGradGuard no_grad;
      parameter.fill_(value);
    }
    step();
    static_cast<void>(it.loss(3));  // closes the step
    const auto& numerics = session.capabilities().numerics;
    CHECK_MESSAGE(name.starts_with(numerics.blamed() + "."),
                  name << " overflowed, named is " << numerics.blamed());
    CHECK_FALSE(numerics.blamed().empty());
    ++tried;
  }
  return tried;
}

TEST_SUITE("adopted formats") {
  TEST_CASE("a block in bf16 computes what the program with casts around its products does") {
    for (const bool both : {false, true}) {
      Pair written, adopted;
      written.second = by_hand_in_bf16;
      if (both) written.first = by_hand_in_bf16;
      const Flags settings =
          both ? Flags{"--cox.precision.format=bf16"}
               : Flags{"--cox.precision.format=fp32", "--cox.precision.force=1=bf16"};
      CHECK(same(train(written.model_case(), 3).state,
                 train_adopted(adopted.model_case(), settings, 3).state));
    }
  }

  TEST_CASE("forced to recompute, models in bf16, fp16 and fp8 train with the bits of keep") {
    const char* const formats[] = {"bf16", "fp16", "fp8"};
    for (std::size_t f = 0; f < std::size(formats); ++f) {
      CAPTURE(formats[f]);
      const Flags narrow = {std::string("--cox.precision.format=") + formats[f]};
      for (std::size_t m = 0; m < kModels; ++m) {
        CAPTURE(m);
        // Two models run in each format, the others in one.
        if (m != kResnet && m != kGpt2 && m % std::size(formats) != f) continue;
        const Trained kept = train_adopted(model_at(m), narrow);
        const Trained replayed =
            train_adopted(model_at(m), with(narrow, "--cox.memory.force=*=recompute"));
        CHECK(same(kept.state, replayed.state));
        CHECK(replayed.steered > 0);
        CHECK_FALSE(same(kept.state, train(model_at(m), 4).state));
      }
    }
  }

  TEST_CASE("some blocks in bf16 and others as written keep each budget, with the same bits") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    int met = 0;
    for (const std::size_t m : {kResnet, kUnet}) {
      CAPTURE(m);
      const std::string wide = m == kResnet ? "layer2.*" : "up.*";
      const Flags some = {"--cox.precision.format=bf16", "--cox.precision.force=" + wide + "=fp32"};
      const Trained kept = train_adopted(model_at(m), some);
      for (const std::int64_t percent : {98, 95, 92}) {
        const std::int64_t budget =
            counted_memory().live_bytes + kept.kept + kept.last_peak * percent / 100;
        const Flags within = with(some, "--cox.memory.budget=" + std::to_string(budget));
        try {
          const Trained found = train_adopted(model_at(m), within);
          CHECK(same(kept.state, found.state));
          CHECK(found.steered > 0);
          CHECK(found.counted_peak <= budget);
          ++met;
        } catch (const Error& error) {  // below the smallest plan
          CHECK(std::string(error.what()).find("at that peak") != std::string::npos);
        }
      }
    }
    CHECK(met >= 3);
  }

  TEST_CASE("a ResNet and a GPT-2 in bf16 and fp8 learn as they do in fp32") {
    constexpr std::uint64_t kMany = 40;
    // By how much the losses of the second half are below the first step's.
    const auto learned = [](const Trained& trained) {
      double sum = 0;
      for (std::size_t i = kMany / 2; i < kMany; ++i)
        sum += trained.state[0].item<double>() - trained.state[i].item<double>();
      return sum;
    };
    for (const std::size_t m : {kResnet, kGpt2}) {
      CAPTURE(m);
      const double wide = learned(train(model_at(m), kMany));
      for (const char* format : {"bf16", "fp8"}) {
        const Flags narrow = {std::string("--cox.precision.format=") + format};
        const double found = learned(train_adopted(model_at(m), narrow, kMany));
        MESSAGE(wide << " in fp32, " << found << " in " << std::string(format));
        CHECK(found / wide == doctest::Approx(1).epsilon(format[0] == 'b' ? 0.005 : 0.02));
      }
    }
  }

  TEST_CASE("formats in fp32, and those of a program of its own, change no bit") {
    const Flags none[] = {{"--cox.precision.format=fp32", "--cox.precision.mode=on"},
                          {"--cox.precision.format=bf16", "--cox.precision.mode=observe"}};
    for (const Flags& settings : none) {
      CHECK(
          same(train(model_at(kGpt2), 3).state, train_adopted(model_at(kGpt2), settings, 3).state));
    }
    const auto own = [](const ModelCase& it) {
      return ModelCase{it.name, it.model, [loss = it.loss](std::uint64_t seed) {
                         const PrecisionScope scope(at::kCPU, Precision::bf16);
                         return loss(seed).to(at::kFloat);
                       }};
    };
    CHECK(same(train(own(model_at(kGpt2)), 3).state,
               train_adopted(own(model_at(kGpt2)), {"--cox.precision.format=fp16"}, 3).state));
  }

  TEST_CASE("blocks that choose by themselves are timed in each format before the second step") {
    for (const std::size_t m : {kResnet, kGpt2}) {
      const ModelCase it = model_at(m);
      auto session = solo_session({"--cox.precision.format=auto", "--cox.precision.emulate=on",
                                   "--cox.memory.force=*=recompute"});
      session.adopt(*it.model);
      const Trained trained = train(it, 3);
      const std::size_t blocks = session.capabilities().blocks.names().size();
      CHECK(session.plan().precision.size() == blocks);
      for (std::size_t i = 0; i < 3; ++i) CHECK(std::isfinite(trained.state[i].item<double>()));
      session.finish();
    }
  }

  TEST_CASE("an overflow in any product of a ResNet and a GPT-2 is named by its block") {
    CHECK(name_all_overflows(kResnet, "fp16", 1e6) >= 10);
    CHECK(name_all_overflows(kResnet, "bf16", 3e38) >= 10);
    CHECK(name_all_overflows(kResnet, "fp8", 3e38) >= 10);
    CHECK(name_all_overflows(kGpt2, "fp16", 1e6) >= 10);
  }

  TEST_CASE("clean steps blame nobody, and tell the magnitudes and the noise of each block") {
    const ModelCase it = model_at(kGpt2);
    auto session = solo_session({"--cox.precision.format=bf16", "--cox.precision.sample_every=1"});
    const Added<Evidence> reported(session.state().actuators());
    session.adopt(*it.model);
    train(it, 12);
    const auto& numerics = session.capabilities().numerics;
    CHECK((numerics.health().verdict().where == cox::detail::HealthVerdict::Where::nothing));
    const auto& evidence = reported->newest;
    const auto names = session.capabilities().blocks.names();
    REQUIRE(evidence.size() == names.size());
    int magnitudes = 0, noises = 0;
    for (const BlockEvidence& block : evidence) {
      magnitudes += block.activation.value > 0 && block.gradient.value > 0;
      noises += block.noise_count > 0;
      CHECK_FALSE(block.has_overflow());
    }
    CHECK(magnitudes >= static_cast<int>(names.size()) - 2);  // none for the first and the last
    CHECK(noises == static_cast<int>(names.size()));
  }

  TEST_CASE("parameters that were spoiled before a step are told as such") {
    const ModelCase it = model_at(kResnet);
    auto session = solo_session({"--cox.precision.format=bf16"});
    session.adopt(*it.model);
    torch::optim::SGD optimizer(it.model->parameters(), 0.01);
    it.loss(3).backward();
    optimizer.step();
    {
      const at::NoGradGuard no_grad;
      it.model->named_parameters()["layer2.0.conv1.weight"][0].fill_(std::nan(""));
    }
    it.loss(3).backward();
    optimizer.step();
    static_cast<void>(it.loss(3));
    const auto& numerics = session.capabilities().numerics;
    CHECK((numerics.health().verdict().where == cox::detail::HealthVerdict::Where::parameters));
    CHECK(numerics.blamed() == "layer2.0");
  }

  TEST_CASE("a request for another format is answered by a plan, and ends when it is released") {
    const ModelCase it = model_at(kResnet);
    auto session = solo_session({"--cox.precision.format=bf16"});
    session.adopt(*it.model);
    CHECK(steps_until(session, it, Precision::bf16));
    session.force_precision("*", Precision::fp32);
    CHECK(steps_until(session, it, Precision::fp32));
    session.release_precision("*");
    CHECK(steps_until(session, it, Precision::bf16));
    session.finish();
  }

  TEST_CASE(
      "delayed scaling in fp8 remembers the same under recompute, and is not the current one") {
    const Flags delayed = {"--cox.precision.format=fp8", "--cox.precision.fp8_scaling=delayed"};
    for (const std::size_t m : {kResnet, kGpt2}) {
      const Trained kept = train_adopted(model_at(m), delayed, 6);
      const Flags recomputed = with(delayed, "--cox.memory.force=*=recompute");
      CHECK(same(kept.state, train_adopted(model_at(m), recomputed, 6).state));
      CHECK_FALSE(
          same(kept.state, train_adopted(model_at(m), {"--cox.precision.format=fp8"}, 6).state));
    }
  }

  TEST_CASE("what fp8 loses is told of each block, once for every value") {
    const auto sampled = [](const Flags& settings) {
      const ModelCase it = model_at(kGpt2);
      auto session = solo_session(with(settings, "--cox.precision.format=fp8"));
      const Added<Evidence> reported(session.state().actuators());
      session.adopt(*it.model);
      train(it, 3);
      std::vector<std::uint64_t> counts;
      for (const BlockEvidence& block : reported->newest) counts.push_back(block.sampled);
      return counts;
    };
    const auto kept = sampled({});
    CHECK(std::ranges::count(kept, 0u) <= 2);  // embeddings and a norm have no products
    CHECK(kept == sampled({"--cox.memory.force=*=recompute"}));
  }

  TEST_CASE("a rule that fits no block is refused") {
    CHECK(error_of({"--cox.precision.force=nowhere=bf16"}).find("nowhere") != std::string::npos);
  }
}

}  // namespace
