// Steps of a Trainer whose offloaded tensors are damaged.
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/training/capabilities.h"
#include "small_training.h"
#include "tests/sdk/memory/tier_file.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(24, 24)));
    }
  }
  at::Tensor loss() {
    at::Tensor x = torch::linspace(-1, 1, 24 * 24).view({24, 24});
    for (torch::nn::Linear& layer : layers) x = torch::dropout(layer(x).tanh(), 0.1, true);
    return x.pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Deep);

struct Trained {
  std::map<std::uint64_t, float> losses;  // each step's last attempt
  std::vector<std::uint64_t> attempts;    // step numbers, one for each attempt
  std::vector<std::int64_t> written;      // bytes offloaded by each attempt
};

constexpr std::uint64_t kSteps = 6, kDamagedStep = 3;

using Damage = bool (*)(const std::filesystem::path&);

// Trains; damages the tier once, between the forward and the backward pass of a step.
Trained train(const std::vector<std::string>& flags, const TempFolder& folder, Damage damage) {
  auto session = solo_session(flags);
  Deep model;
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  TrainerOptions options;
  options.steps = kSteps;
  options.global_batch = 4;
  Trainer trainer(session, *model, optimizer, options);
  const SmallData data;
  Trained trained;
  for (auto& step : trainer.steps(data)) {
    trained.attempts.push_back(step.number());
    const at::Tensor loss = step.forward([&] { return model->loss(); });
    if (step.number() == kDamagedStep && damage != nullptr) {
      REQUIRE(std::exchange(damage, nullptr)(folder.path()));
    }
    trained.losses[step.number()] = loss.item<float>();
    const auto* offloader = session.capabilities().memory.offloader();
    trained.written.push_back(offloader != nullptr ? offloader->counts().written_bytes : 0);
    step.backward(loss);
    step.update();
  }
  session.finish();
  return trained;
}

}  // namespace

TEST_SUITE("lost offload") {
  TEST_CASE("the step is repeated without the tier, with the bits of an undisturbed training") {
    const TempFolder folder;
    const Trained kept = train({}, folder, nullptr);
    for (const Damage damage : {cox::test::change_tier_file, cox::test::empty_tier_file}) {
      const Trained found =
          train({"--cox.memory.tier_directory=" + folder.path().string(),
                 "--cox.memory.smallest_bytes=256", "--cox.memory.force=*=offload"},
                folder, damage);
      CHECK(found.losses == kept.losses);
      CHECK((found.attempts == std::vector<std::uint64_t>{0, 1, 2, 3, 3, 4, 5}));
      CHECK(found.written[3] > 0);
      for (std::size_t i = 4; i < found.written.size(); ++i) CHECK(found.written[i] == 0);
    }
  }
}
