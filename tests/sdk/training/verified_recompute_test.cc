// Blocks that can be recomputed when a job starts but not later, found by memory.verify_steps.
#include <torch/library.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/training/capabilities.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Flags = std::vector<std::string>;

// An operator whose result changes at each run, once it is told to drift.
struct Drift {
  static inline double by = 0;
  static inline double sum = 0;
  static at::Tensor run(const at::Tensor& x) { return x.clone().add_(sum += by); }
};

// An operator that returns its input, with other bits in each backward pass.
struct Jitter {
  static inline bool is_on = false;
  static inline int forward_runs = 0, backward_runs = 0;
  static at::Tensor run(const at::Tensor& x) {
    ++forward_runs;
    return x.clone();
  }
  static at::Tensor with_gradient(const at::Tensor& x);
};

TORCH_LIBRARY_FRAGMENT(coxswain, library) {
  library.def("test_drift(Tensor x) -> Tensor");
  library.def("test_jitter(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(coxswain, CPU, library) {
  library.impl("test_drift", &Drift::run);
  library.impl("test_jitter", &Jitter::run);
}
TORCH_LIBRARY_IMPL(coxswain, Autograd, library) {
  library.impl("test_jitter", &Jitter::with_gradient);
}

at::Tensor jitter(const at::Tensor& x) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("coxswain::test_jitter", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
  return handle.call(x);
}

struct JitterFunction : torch::autograd::Function<JitterFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return jitter(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * (1 + 1e-6 * ++Jitter::backward_runs)};
  }
};

at::Tensor Jitter::with_gradient(const at::Tensor& x) {
  return JitterFunction::apply(x);
}

at::Tensor drift(const at::Tensor& x) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("coxswain::test_drift", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
  return handle.call(x);
}

struct DriftingImpl : torch::nn::Module {
  DriftingImpl() {
    torch::manual_seed(2);
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(6, 6));
  }
  // A layer saves only the gate beside its input, so that every level drops the gate.
  at::Tensor loss() {
    at::Tensor x = torch::linspace(-1, 1, 6 * 8).view({8, 6});
    for (std::size_t i = 0; i < 3; ++i) {
      at::Tensor wide = layers->at<torch::nn::LinearImpl>(i).forward(x);
      if (Jitter::is_on) wide = jitter(wide);
      const at::Tensor gate = i == 1 ? drift(wide.detach()) : wide.detach();
      x = wide * gate.sigmoid();
    }
    return x.pow(2).mean();
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Drifting);

struct Trained {
  std::vector<std::uint64_t> pinned_in;  // the first step that began with a block pinned, if any
  std::vector<cox::detail::PinnedBlock> pinned;
};

constexpr std::uint64_t kSteps = 14, kDriftsFrom = 5;

void note_pinned(Session& session, std::uint64_t step, Trained& trained) {
  trained.pinned = session.capabilities().blocks.pinned();
  if (!trained.pinned.empty() && trained.pinned_in.empty()) trained.pinned_in = {step};
}

std::uint64_t drifts_from = kDriftsFrom;  // the first drifting step

void set_drift(std::uint64_t step) {
  Drift::by = step >= drifts_from ? 0.5 : 0;
  if (step == 0) Drift::sum = 0;
}

// Makes gradients of a step differ from run to run during its lifetime.
struct WithJitter {
  explicit WithJitter(std::uint64_t drifts) {
    drifts_from = drifts;
    Jitter::is_on = true;
    Jitter::forward_runs = Jitter::backward_runs = 0;
  }
  ~WithJitter() {
    drifts_from = kDriftsFrom;
    Jitter::is_on = false;
  }
};

Trained train_with_trainer(const Flags& flags) {
  auto session = solo_session(flags);
  Drifting model;
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  TrainerOptions options;
  options.steps = kSteps;
  options.global_batch = 4;
  Trainer trainer(session, *model, optimizer, options);
  const SmallData data;
  Trained trained;
  set_drift(0);
  for (auto& step : trainer.steps(data)) {
    note_pinned(session, step.number(), trained);
    set_drift(step.number());
    const at::Tensor loss = step.forward([&] { return model->loss(); });
    step.backward(loss);
    step.update();
  }
  session.finish();
  return trained;
}

Trained train_adopted(const Flags& flags) {
  auto session = solo_session(flags);
  Drifting model;
  session.adopt(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Trained trained;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (step > 1) note_pinned(session, step, trained);
    set_drift(step);
    optimizer.zero_grad();
    model->loss().backward();
    optimizer.step();
  }
  session.finish();
  return trained;
}

Flags recomputed(const char* verify_steps) {
  return {"--cox.memory.force=*=recompute",
          std::string("--cox.memory.verify_steps=") + verify_steps};
}

}  // namespace

TEST_SUITE("verified recompute") {
  TEST_CASE("a block that begins to compute otherwise is kept from the next comparison on") {
    for (const auto train : {train_with_trainer, train_adopted}) {
      const Trained trained = train(recomputed("4"));
      REQUIRE(trained.pinned.size() == 1);
      CHECK(trained.pinned[0].block == BlockId(1));
      CHECK(trained.pinned[0].reason.find("memory.verify_steps") != std::string::npos);
      // Drifts from step 5 on; compared in step 8.
      CHECK(trained.pinned_in[0] >= 9);
      CHECK(trained.pinned_in[0] <= 10);
    }
  }

  TEST_CASE("without comparisons nobody notices, and equal bits pin nothing") {
    CHECK(train_with_trainer(recomputed("0")).pinned.empty());
    CHECK(train_with_trainer(recomputed("1000")).pinned.empty());
    CHECK(train_with_trainer({"--cox.memory.verify_steps=1"}).pinned.empty());
  }

  TEST_CASE("dropout, masks and what is offloaded are equal in every step") {
    const TempFolder tier;
    for (const char* action : {"recompute", "offload"}) {
      auto session = solo_session({std::string("--cox.memory.force=*=") + action,
                                   "--cox.memory.tier_directory=" + tier.path().string(),
                                   "--cox.memory.smallest_bytes=1", "--cox.memory.verify_steps=1"});
      SmallModel model;
      AdamW optimizer(model->parameters(), {.lr = 0.01});
      TrainerOptions options;
      options.steps = 6;
      options.global_batch = 4;
      Trainer trainer(session, *model, optimizer, options);
      const SmallData data;
      CHECK(train(trainer, model, data).size() == 6);
      CHECK(session.capabilities().blocks.pinned().empty());
      session.finish();
    }
  }

  TEST_CASE("a step whose gradients differ by themselves is compared by what backward gets") {
    for (const auto train : {train_with_trainer, train_adopted}) {
      const WithJitter unsteady(kSteps + 1);
      CHECK(train(recomputed("0")).pinned.empty());
      // Every backward pass runs recomputed layers again.
      CHECK(Jitter::forward_runs >= Jitter::backward_runs + 3 * static_cast<int>(kSteps - 3));
    }
    for (const auto train : {train_with_trainer, train_adopted}) {
      const WithJitter unsteady(0);
      const Trained trained = train(recomputed("0"));
      REQUIRE(trained.pinned.size() == 1);
      CHECK(trained.pinned[0].block == BlockId(1));
    }
  }
}
