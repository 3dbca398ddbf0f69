// Saves requested by the program: when they are written, and their use.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "coordinator/io/file.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

struct Saving {
  explicit Saving(const TempFolder& folder) : saves(folder / "saves"), run(folder / "run") {}
  Session session(const std::string& resume = "off") const {
    return solo_session({"--cox.checkpoint.directory=" + saves.string(),
                         "--cox.run.directory=" + run.string(),
                         "--cox.checkpoint.resume=" + resume});
  }
  bool has(const std::string& step) const {
    return std::filesystem::exists(saves / ("step-00000000000" + step) / "model.safetensors");
  }

  std::filesystem::path saves;
  std::filesystem::path run;
};

struct Job {
  explicit Job(const Saving& saving) : session(saving.session()) {}

  Session session;
  SmallModel model;
  SmallData data;
  AdamW optimizer{model->parameters()};
  Trainer trainer{session, *model, optimizer, {.steps = 5}};
};

void take(TrainerStep& step, SmallModel& model) {
  step.backward(step.forward([&] { return model->loss(step.batch()); }));
  step.update();
}

int lines_with(const std::filesystem::path& file, const std::string& part) {
  std::ifstream in(file);
  int found = 0;
  for (std::string line; std::getline(in, line);) {
    found += line.find(part) == std::string::npos ? 0 : 1;
  }
  return found;
}

// Sets the working directory during its lifetime.
class WorkingIn {
 public:
  explicit WorkingIn(const std::filesystem::path& folder) { std::filesystem::current_path(folder); }
  ~WorkingIn() { std::filesystem::current_path(before_); }
  WorkingIn(const WorkingIn&) = delete;
  WorkingIn& operator=(const WorkingIn&) = delete;

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

// Removes a file from a save, as if the save never had it.
void forget_file(const std::filesystem::path& save, const std::string& name) {
  auto manifest = io::read_manifest(save);
  REQUIRE(manifest.ok());
  std::erase_if(manifest->files, [&](const io::SaveFile& file) { return file.name == name; });
  std::filesystem::remove(save / name);
  REQUIRE(io::replace_file(save / io::kManifestName, io::to_json(*manifest)).ok());
}

}  // namespace

TEST_SUITE("trainer on one rank") {
  TEST_CASE("a save that is asked for within a step is written when the step has ended") {
    const TempFolder folder;
    const Saving saving(folder);
    Job job(saving);
    for (auto& step : job.trainer.steps(job.data)) {
      const std::string told =
          step.number() == 1 ? error_of([&] { job.trainer.save(); }) : "update()";
      CHECK(told.find("update()") != std::string::npos);
      CHECK(saving.has("2") == (step.number() >= 2));
      take(step, job.model);
      if (step.number() == 1) job.trainer.save();
      CHECK(saving.has("2") == (step.number() >= 2));
    }
    CHECK(saving.has("5"));
  }

  TEST_CASE("a loop that is left by break has what it asked for saved, and saves at once then") {
    for (const bool asks_inside : {false, true}) {
      const TempFolder folder;
      const Saving saving(folder);
      Job job(saving);
      for (auto& step : job.trainer.steps(job.data)) {
        take(step, job.model);
        if (step.number() < 2) continue;
        if (asks_inside) job.trainer.save();
        break;
      }
      CHECK(saving.has("3") == asks_inside);
      job.trainer.save();
      CHECK(saving.has("3"));
    }
  }

  TEST_CASE(
      "a program that changes its working directory keeps its saves and its run in one place") {
    const TempFolder folder;
    const auto elsewhere = folder / "elsewhere";
    std::filesystem::create_directory(elsewhere);
    const Saving saving(folder);
    Saving relative = saving;
    relative.saves = "saves";
    relative.run = "run";
    {
      const WorkingIn home(folder.path());
      Job job(relative);
      for (auto& step : job.trainer.steps(job.data)) {
        if (step.number() == 1) std::filesystem::current_path(elsewhere);
        take(step, job.model);
        if (step.number() == 2) job.trainer.save();
      }
    }
    CHECK(saving.has("3"));
    CHECK(saving.has("5"));
    CHECK(lines_with(saving.run / "rank0/run.json", "\"n_steps\":5") == 1);
    CHECK(std::filesystem::is_empty(elsewhere));
  }

  TEST_CASE("a save of step 0 is gone on from, also without the coordinator's state") {
    const TempFolder folder;
    const Saving saving(folder);
    const SmallData data;
    {
      auto session = saving.session();
      SmallModel model;
      AdamW optimizer(model->parameters());
      Trainer trainer(session, *model, optimizer, {.steps = 5});
      trainer.save();
      for (auto& step : trainer.steps(data)) {
        take(step, model);
        if (step.number() == 2) break;
      }
    }
    CHECK(lines_with(saving.run / "rank0/steps.jsonl", "\"step\":0") == 1);
    forget_file(saving.saves / "step-000000000000", "control.state");
    {
      auto session = saving.session("on");
      SmallModel model;
      AdamW optimizer(model->parameters());
      Trainer trainer(session, *model, optimizer, {.steps = 2});
      for (auto& step : trainer.steps(data)) take(step, model);
      CHECK(trainer.progress().step == 2);
    }
    CHECK(lines_with(saving.run / "rank0/steps.jsonl", "\"step\":") == 2);
  }
}
