// A resumed job never takes a save that is not finite. Each case is a report of people whose job
// did:
//
// https://github.com/Rikorose/DeepFilterNet/issues/30: the last save is NaN, so a resume is useless
//
// https://github.com/micromind-toolkit/micromind/issues/64: gradients explode, and the save goes on
//
// https://github.com/NVIDIA-NeMo/RL/issues/3544: the optimizer's state makes the loss NaN
//
// https://github.com/deepmodeling/deepmd-kit/issues/4985: a job trains on NaN to its end
//
// https://github.com/facebookresearch/maskrcnn-benchmark/issues/464: the rate in the save is NaN
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coxswain/session.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"
#include "tests/sdk/training/small_training.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kSteps = 10, kEvery = 2, kBadStep = 5;

// Spoil introduces a fault into a step.
using Spoil = std::function<void(torch::optim::Adam&, at::Tensor& loss)>;

struct Run {
  std::vector<at::Tensor> weights;
  std::string end;  // error of the loop or the session
};

// Saves every two steps, and keeps one save.
Run train(const std::string& folder, const Spoil& spoil, bool resumes = false) {
  auto session = solo_session({"--cox.checkpoint.directory=" + folder,
                               "--cox.checkpoint.every_steps=" + std::to_string(kEvery),
                               "--cox.checkpoint.keep=1",
                               resumes ? "--cox.checkpoint.resume=on" : "--cox.run.log=error"});
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Linear(6, 1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  session.adopt(*net);
  Run run;
  std::int64_t epoch = 0, step = 0;
  run.end = error_of([&] {
    for (; step < kSteps; ++step) {
      session.keep(optimizer, epoch, step);
      optimizer.zero_grad();
      const at::Tensor x = torch::sin(torch::arange(8, torch::kFloat) + static_cast<double>(step));
      at::Tensor loss = net->forward(x.view({2, 4})).square().mean();
      if (step == kBadStep && spoil) spoil(optimizer, loss);
      loss.backward();
      optimizer.step();
    }
    session.finish();
  });
  if (!run.end.empty())
    error_of([&] { session.finish(); });  // else the process's exit code tells it
  for (const at::Tensor& weight : net->parameters()) run.weights.push_back(weight.detach().clone());
  return run;
}

// Checks that the save before the bad step is the newest, and that a resume from it ends as if
// there had been no fault.
void check_takes_none(const char* report, const Spoil& spoil) {
  CAPTURE(report);
  auto probe = solo_session();
  const SharedFolder shared(probe);
  probe.finish();
  const Run whole = train(shared.text() + "/whole", {});
  CHECK(whole.end.empty());
  const std::string folder = shared.text() + "/spoilt";
  const Run spoilt = train(folder, spoil);
  CHECK(spoilt.end != "");  // deepmd-kit 4985: no success may be reported
  const auto saves = io::saves_in(folder);
  REQUIRE(saves.size() == 1);
  CHECK(*io::step_of_save(saves[0]) <= kBadStep);
  const Run resumed = train(folder, {}, true);
  CHECK(resumed.end.empty());
  for (std::size_t i = 0; i < whole.weights.size(); ++i)
    CHECK(sdk_test::same_bits(resumed.weights[i], whole.weights[i]));
}

}  // namespace

TEST_SUITE("saves that are not finite") {
  TEST_CASE("weights that a loss of NaN has spoilt push out no good save") {
    check_takes_none("DeepFilterNet 30", [](auto&, at::Tensor& loss) {
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    });
  }

  TEST_CASE("nor do those of gradients that explode") {
    check_takes_none("micromind 64", [](auto&, at::Tensor& loss) {
      loss = loss * std::numeric_limits<double>::infinity();
    });
  }

  // 1e25 squared exceeds F32, so the second moment is infinite and the weights stay unchanged.
  TEST_CASE("moments that are not finite are not saved beside weights that are") {
    check_takes_none("NeMo RL 3544", [](auto&, at::Tensor& loss) { loss = loss * 1e25; });
  }

  TEST_CASE("a rate of NaN is refused before it is used or saved") {
    check_takes_none("maskrcnn-benchmark 464", [](torch::optim::Adam& optimizer, at::Tensor& loss) {
      optimizer.param_groups()[0].options().set_lr(std::nan(""));
      loss = loss * 0;
    });
  }
}
