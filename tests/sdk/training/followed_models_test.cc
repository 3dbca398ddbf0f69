// Seven unmodified models under a Trainer: the operator stream finds and follows their blocks.
// Memory plans, formats and the numerics watch act on them as on marked blocks.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/training/capabilities.h"
#include "small_training.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/stream/models.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using cox::detail::BlockWatch;
using cox::detail::counted_memory;
using cox::detail::NumericsWatch;
using stream_models::ModelCase;
using Flags = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

constexpr std::size_t kModels = 7, kResnet = 0, kUnet = 2, kGpt2 = 4;

ModelCase model_at(std::size_t place) {
  return stream_models::model_at(place, 11);
}

struct Trained {
  Tensors state;  // losses, parameters, buffers
  std::size_t blocks = 0;
  std::size_t steered = 0;     // blocks not kept by the last plan
  std::int64_t kept = 0;       // live before the last step
  std::int64_t last_peak = 0;  // counted, of the last step
  std::uint64_t skipped = 0;
  std::int64_t held = 0;  // by the last step between its passes
};

Trained train_in(Session& session, const ModelCase& it, std::uint64_t steps) {
  AdamW optimizer(it.model->parameters(), {.lr = 0.01});
  TrainerOptions options;
  options.steps = steps;
  options.global_batch = 4;
  Trainer trainer(session, *it.model, optimizer, options);
  const SmallData data;
  Trained trained;
  for (auto& step : trainer.steps(data)) {
    cox::detail::reset_counted_peak();
    trained.kept = counted_memory().live_bytes;
    const std::uint64_t done = trainer.progress().step;
    const at::Tensor loss = step.forward([&] { return it.loss(3); });
    trained.held = counted_memory().live_bytes - trained.kept;
    step.backward(loss);
    trained.last_peak = counted_memory().peak_bytes;
    step.update();
    if (trainer.progress().step == done) continue;  // to be repeated
    trained.state.push_back(loss.detach().clone());
  }
  const auto& blocks = session.capabilities().blocks;
  trained.blocks = blocks.size();
  for (std::size_t b = 0; b < trained.blocks; ++b) {
    const auto action = action_of(session.plan(), RankId(0), BlockId(static_cast<BlockId::rep>(b)));
    trained.steered += action != MemoryAction::keep;
  }
  trained.skipped = trainer.progress().skipped;
  for (const at::Tensor& p : it.model->parameters()) trained.state.push_back(p.detach().clone());
  for (const at::Tensor& b : it.model->buffers()) trained.state.push_back(b.detach().clone());
  return trained;
}

Trained train_case(const ModelCase& it, const Flags& settings, std::uint64_t steps = 4) {
  auto session = solo_session(settings);
  Trained trained = train_in(session, it, steps);
  session.finish();
  return trained;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

// The same loop without the stream: the Trainer's own computation.
Trained train_unseen(std::size_t model, std::uint64_t steps = 4) {
  ModelCase it = model_at(model);
  it.loss = [loss = it.loss](std::uint64_t seed) {
    const cox::detail::StreamPause unseen;
    return loss(seed);
  };
  return train_case(it, {}, steps);
}

TEST_SUITE("followed models") {
  TEST_CASE("blocks of a model that marks none are found, named and measured") {
    for (std::size_t m = 0; m < kModels; ++m) {
      CAPTURE(m);
      const ModelCase it = model_at(m);
      auto session = solo_session();
      const Trained trained = train_in(session, it, 3);
      CHECK(trained.blocks > 0);
      CHECK(same(trained.state, train_unseen(m, 3).state));
      session.finish();
    }
  }

  TEST_CASE("forced to recompute, every model trains with the bits of keep") {
    for (std::size_t m = 0; m < kModels; ++m) {
      CAPTURE(m);
      const Trained kept = train_unseen(m);
      const Trained replayed = train_case(model_at(m), {"--cox.memory.force=*=recompute"});
      CHECK(same(kept.state, replayed.state));
      CHECK(replayed.steered > 0);
    }
  }

  TEST_CASE("forced to offload, every model trains with the bits of keep") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    const TempFolder tier;
    for (std::size_t m = 0; m < kModels; ++m) {
      CAPTURE(m);
      const Trained offloaded =
          train_case(model_at(m), {"--cox.memory.force=*=offload",
                                   "--cox.memory.tier_directory=" + tier.path().string(),
                                   "--cox.memory.smallest_bytes=256"});
      const Trained kept = train_unseen(m);
      CHECK(same(kept.state, offloaded.state));
      CHECK(offloaded.steered > 0);
      if (m == kResnet || m == kUnet || m == kGpt2) CHECK(offloaded.held < kept.held / 2);
    }
  }

  TEST_CASE("budgets are kept from the first step on, with the bits of keep") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    int met = 0, steered = 0;
    for (const std::size_t m : {kResnet, kUnet, kGpt2}) {
      CAPTURE(m);
      const Trained kept = train_unseen(m);
      // A plan has room for a later rollback snapshot.
      for (const std::int64_t percent : {107, 104, 101, 98}) {
        const std::int64_t budget = kept.last_peak * percent / 100;
        CAPTURE(percent);
        try {
          const Trained found =
              train_case(model_at(m), {"--cox.memory.budget=" + std::to_string(budget)});
          CHECK(same(kept.state, found.state));
          CHECK(found.last_peak <= budget);
          steered += found.steered > 0;
          ++met;
        } catch (const Error& error) {  // below the smallest plan
          CHECK(std::string(error.what()).find("at that peak") != std::string::npos);
        }
      }
    }
    CHECK(met >= 6);
    CHECK(steered >= 4);
  }

  TEST_CASE("in bf16, fp16 and fp8 recompute gives the bits of keep, and fp16 has a loss scale") {
    for (const char* format : {"bf16", "fp16", "fp8"}) {
      CAPTURE(std::string(format));
      const Flags narrow = {std::string("--cox.precision.format=") + format};
      Flags recomputed = narrow;
      recomputed.emplace_back("--cox.memory.force=*=recompute");
      for (const std::size_t m : {kResnet, kUnet, kGpt2}) {
        CAPTURE(m);
        const Trained kept = train_case(model_at(m), narrow);
        CHECK(same(kept.state, train_case(model_at(m), recomputed).state));
        CHECK_FALSE(same(kept.state, train_unseen(m).state));
      }
    }
  }

  TEST_CASE("a step with an overflow is skipped, and its block named") {
    ModelCase it = model_at(kResnet);
    const at::Tensor weight = it.model->named_parameters()["layer2.0.conv1.weight"];
    int calls = 0;
    it.loss = [&calls, weight, loss = it.loss](std::uint64_t seed) {
      if (++calls == 3) {
        const at::NoGradGuard no_grad;
        weight.fill_(3e38);
      }
      return loss(seed);
    };
    auto session = solo_session({"--cox.precision.format=bf16"});
    CHECK(train_in(session, it, 3).skipped == 1);
    CHECK(session.capabilities().numerics.blamed() == "layer2.0");
    session.finish();
  }

  TEST_CASE("what runs outside of a step, or without gradients, is no visit of a block") {
    const ModelCase it = model_at(kGpt2);
    auto session = solo_session({"--cox.memory.force=*=recompute"});
    AdamW optimizer(it.model->parameters(), {.lr = 0.01});
    TrainerOptions options;
    options.steps = 3;
    options.global_batch = 4;
    Trainer trainer(session, *it.model, optimizer, options);
    const SmallData data;
    auto& visits = *session.capabilities().blocks.visits();
    for (auto& step : trainer.steps(data)) {
      step.backward(step.forward([&] { return it.loss(3); }));
      CHECK_FALSE(visits.current());
      {
        const at::NoGradGuard no_grad;
        static_cast<void>(it.loss(4));
      }
      CHECK_FALSE(visits.current());
      step.update();
    }
    const std::uint64_t shown = cox::detail::operators_shown();
    static_cast<void>(it.loss(5));
    CHECK(cox::detail::operators_shown() == shown);
    session.finish();
  }

  TEST_CASE("a forward pass that runs out of memory is run again with less, with the same bits") {
    for (const std::size_t m : {kResnet, kGpt2}) {
      CAPTURE(m);
      ModelCase it = model_at(m);
      auto session = solo_session({"--cox.memory.budget=1GiB"});
      int runs = 0;
      it.loss = [&, model_loss = it.loss](std::uint64_t seed) {
        const at::Tensor loss = model_loss(seed);
        const bool is_third = session.state().step().steps_ended() == 2;
        if (is_third && ++runs == 1) TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
        return loss;
      };
      const Trained found = train_in(session, it, 12);
      session.finish();
      CHECK(runs == 2);
      CHECK(same(found.state, train_unseen(m, 12).state));
      CHECK(found.steered > 0);  // the coordinator has made a tighter plan
    }
  }

  TEST_CASE("an out-of-memory error passes where memory is not planned, or a second time") {
    for (const bool is_planned : {false, true}) {
      ModelCase it = model_at(kGpt2);
      auto session = is_planned ? solo_session({"--cox.memory.budget=1GiB"}) : solo_session();
      int runs = 0;
      it.loss = [&, loss = it.loss](std::uint64_t seed) {
        const at::Tensor value = loss(seed);
        if (session.state().step().steps_ended() > 1 && ++runs > 0) throw std::bad_alloc();
        return value;
      };
      CHECK_THROWS_AS(train_in(session, it, 4), std::bad_alloc);
      CHECK(runs == (is_planned ? 2 : 1));
    }
  }

  TEST_CASE(
      "a backward pass that runs out of memory makes the step run again, with the same bits") {
    for (const std::size_t m : {kResnet, kGpt2}) {
      CAPTURE(m);
      ModelCase it = model_at(m);
      auto session = solo_session({"--cox.memory.budget=1GiB"});
      int passes = 0;
      it.loss = [&, model_loss = it.loss](std::uint64_t seed) {
        const at::Tensor loss = model_loss(seed);
        if (session.state().step().steps_ended() != 2 || ++passes != 1) return loss;
        const at::Tensor fails = loss * 1;  // fails after a part of the backward pass
        fails.register_hook([](const at::Tensor& g) -> at::Tensor {
          TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
          return g;
        });
        it.model->parameters().back().sum().backward();
        return fails;
      };
      const Trained found = train_in(session, it, 12);
      session.finish();
      CHECK(passes == 1);
      CHECK(same(found.state, train_unseen(m, 12).state));
      CHECK(found.steered > 0);  // the coordinator has made a tighter plan
    }
  }

  TEST_CASE("a micro-batch that runs out of memory makes the step run again, with the same bits") {
    const auto run = [](int failing) {
      const ModelCase it = model_at(kGpt2);
      auto session = solo_session({"--cox.memory.budget=1GiB"});
      AdamW optimizer(it.model->parameters(), {.lr = 0.01});
      TrainerOptions options;
      options.steps = 3;
      options.global_batch = 4;
      options.micro_batch = 2;
      Trainer trainer(session, *it.model, optimizer, options);
      const SmallData data;
      int runs = 0;
      for (auto& step : trainer.steps(data)) {
        step.accumulate([&](const Batch& batch) {
          const bool is_second = session.state().step().steps_ended() > 0;
          if (is_second && ++runs == failing) throw std::bad_alloc();
          return it.loss(static_cast<std::uint64_t>(batch.samples)) + 0 * batch.inputs.sum();
        });
        step.update();
      }
      CHECK(trainer.progress().repeated == (failing > 0 ? 1 : 0));
      session.finish();
      Tensors state;
      for (const at::Tensor& p : it.model->parameters()) state.push_back(p.detach().clone());
      return state;
    };
    const Tensors expected = run(0);
    for (const int failing : {1, 2}) CHECK(same(expected, run(failing)));
  }

  TEST_CASE("micro-batches of a step are recomputed with the bits of keep") {
    const auto run = [](const Flags& settings) {
      const ModelCase it = model_at(kGpt2);
      auto session = solo_session(settings);
      AdamW optimizer(it.model->parameters(), {.lr = 0.01});
      TrainerOptions options;
      options.steps = 3;
      options.global_batch = 4;
      options.micro_batch = 2;
      Trainer trainer(session, *it.model, optimizer, options);
      const SmallData data;
      for (auto& step : trainer.steps(data)) {
        step.accumulate([&](const Batch& batch) {
          return it.loss(static_cast<std::uint64_t>(batch.samples)) + 0 * batch.inputs.sum();
        });
        step.update();
      }
      session.finish();
      Tensors state;
      for (const at::Tensor& p : it.model->parameters()) state.push_back(p.detach().clone());
      return state;
    };
    CHECK(same(run({}), run({"--cox.memory.force=*=recompute"})));
  }

  TEST_CASE(
      "a block whose gradients differ when it is recomputed is kept, and the others are not") {
    // The input of the third layer depends on a number written by no operator.
    struct Stateful : torch::nn::Module {
      Stateful() {
        for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(6, 6));
        register_module("layers", layers);
      }
      at::Tensor forward(at::Tensor x) {
        for (std::size_t i = 0; i < layers->size(); ++i) {
          x = layers[i]->as<torch::nn::Linear>()->forward(x).tanh();
          if (i != 1) continue;
          at::Tensor made = x * 2;
          // Writes into a tensor that autograd will save, without changing its version.
          made.data_ptr<float>()[0] = 3;
          x = made.sin();
        }
        return x;
      }
      torch::nn::ModuleList layers;
    };
    const auto run = [](const Flags& settings, std::vector<cox::detail::PinnedBlock>* pinned) {
      torch::manual_seed(4);
      const auto model = std::make_shared<Stateful>();
      const ModelCase it{"stateful", model, [model](std::uint64_t) {
                           torch::manual_seed(9);
                           return model->forward(at::randn({4, 6})).square().mean();
                         }};
      auto session = solo_session(settings);
      Trained trained = train_in(session, it, 3);
      if (pinned != nullptr) *pinned = session.capabilities().blocks.pinned();
      session.finish();
      return trained;
    };
    std::vector<cox::detail::PinnedBlock> pinned;
    const Trained kept = run({}, nullptr);
    const Trained found = run({"--cox.memory.force=*=recompute"}, &pinned);
    CHECK(same(kept.state, found.state));
    REQUIRE(pinned.size() == 1);
    CHECK(pinned[0].block == BlockId(1));
    CHECK(found.steered > 0);
  }
}

}  // namespace
