// A program's own state, master weights, and the end of a job that cannot continue.
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/trainer.h"
#include "coxswain/weight_average.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

bool equal(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || !torch::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return true;
}

SmallModel model_in_bf16() {
  SmallModel model;
  model->to(at::kBFloat16);
  return model;
}

// A run in bf16 with all state that a resume must restore.
struct Run {
  SmallModel model = model_in_bf16();
  MasterWeights masters{model->parameters()};
  AdamW optimizer{masters.tensors(), {.lr = 0.01}};
  WeightAverage average{*model};
  at::Tensor schedule = torch::zeros({1});

  void go(const std::vector<std::string>& flags, std::uint64_t steps) {
    auto session = solo_session(flags);
    Trainer trainer(session, *model, masters, optimizer, {.steps = steps, .clip_norm = 0.05});
    trainer.add_state("average", average);
    trainer.add_state("schedule", {.state = [this] { return schedule_state(); },
                                   .load =
                                       [this](std::span<const NamedTensor> saved) {
                                         schedule.copy_(saved[0].tensor);
                                         return Status();
                                       }});
    const SmallData data;
    for (auto& step : trainer.steps(data)) {
      const Batch& batch = step.batch();
      step.backward(step.forward([&] {
        return model->loss(
            {batch.inputs.to(at::kBFloat16), batch.targets.to(at::kBFloat16), batch.samples});
      }));
      step.update();
      average.update();
      schedule += 1;
    }
  }
  std::vector<NamedTensor> schedule_state() const { return {{"count", schedule}}; }
};

}  // namespace

TEST_SUITE("training parts") {
  TEST_CASE("master weights, an average and a schedule go on as if the run had never stopped") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    Run whole;
    whole.go({}, 9);
    Run first;
    first.go({flag}, 4);
    Run second;
    second.go({flag, "--cox.checkpoint.resume=on"}, 9);
    CHECK(equal(second.masters.state(), whole.masters.state()));
    CHECK(equal(second.average.state(), whole.average.state()));
    CHECK(second.schedule.item<float>() == 9);
    CHECK_FALSE(equal(whole.masters.state(), Run().masters.state()));  // training has changed it
    const at::Tensor weight = whole.model->second->weight;
    const bool is_bf16 = weight.scalar_type() == at::kBFloat16;
    CHECK(is_bf16);
    CHECK(torch::equal(weight, whole.masters.named()[2].tensor.to(at::kBFloat16)));
  }

  TEST_CASE("a state needs a name of its own, and one that does not fit is refused at a resume") {
    const TempFolder folder;
    const std::string flag = "--cox.checkpoint.directory=" + (folder / "saves").string();
    Run first;
    first.go({flag}, 2);
    auto session = solo_session({flag, "--cox.checkpoint.resume=on"});
    Run run;
    Trainer trainer(session, *run.model, run.masters, run.optimizer, {.steps = 3});
    torch::nn::Linear other(2, 2);
    WeightAverage misfit(*other);
    CHECK(error_of([&] { trainer.add_state("average", misfit); }).find("average") !=
          std::string::npos);
    for (const std::string name : {"", "a/b", "masters"}) {
      CAPTURE(name);
      CHECK(error_of([&] { trainer.add_state(name, run.average); }).find("add_state") !=
            std::string::npos);
    }
    CHECK(error_of([&] { trainer.add_state("new one", run.average); }).empty());
  }

  TEST_CASE("steps that are not finite end the job after guard.nonfinite_limit of them") {
    auto session = solo_session({"--cox.guard.nonfinite_limit=3"});
    SmallModel model;
    AdamW optimizer(model->parameters());
    Trainer trainer(session, *model, optimizer, {.steps = 50});
    std::vector<double> losses;
    try {
      train(trainer, model, SmallData(), [&](std::uint64_t step, at::Tensor loss) {
        losses.push_back(loss.item<double>());
        const bool is_bad = step == 1 || step >= 4;
        return is_bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
      });
      CHECK(losses.empty());  // the job continued
    } catch (const Error& error) {
      CHECK(error.exit_code() == ExitCode::hopeless);
      CHECK(error.status().message().find("since step 4") != std::string::npos);
      CHECK(error.status().message().find("the loss of rank 0") != std::string::npos);
    }
    CHECK(losses.size() == 7);
  }
}
