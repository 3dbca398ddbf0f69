#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <torch/torch.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

Checkpoint checkpoint_at(std::uint64_t step, std::int64_t numbers = 5) {
  Checkpoint made;
  made.position = {step, step * 8, 7, 4096, 1, 2, {}};
  made.model = {{"w", torch::full({numbers}, static_cast<double>(step), at::kFloat)}};
  made.optimizer = {{"m", torch::full({3}, 0.5)}};
  return made;
}

CheckpointFolder open(const std::filesystem::path& directory) {
  auto opened = CheckpointFolder::open(directory);
  REQUIRE(opened.ok());
  return std::move(*opened);
}

std::string newest_name(const CheckpointFolder& folder) {
  const auto newest = folder.newest();
  return newest ? newest->filename().string() : "none";
}

}  // namespace

TEST_SUITE("checkpoint folder") {
  TEST_CASE("what is written is read again") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp / "saves");
    CHECK_FALSE(folder.newest().has_value());
    REQUIRE(folder.write(checkpoint_at(12), nullptr, 2).ok());
    CHECK(newest_name(folder) == "step-000000000012");
    const auto read = CheckpointFolder::read(*folder.newest());
    REQUIRE(read.ok());
    CHECK(read->position.step == 12);
    CHECK(read->position.cursor == 96);
    CHECK(read->position.seed == 7);
    CHECK(read->position.samples == 4096);
    CHECK(read->position.skipped == 1);
    CHECK(read->position.rollbacks == 2);
    REQUIRE(read->model.size() == 1);
    CHECK(torch::equal(read->model[0].tensor, checkpoint_at(12).model[0].tensor));
    CHECK(read->optimizer[0].name == "m");
  }

  TEST_CASE("a save of an earlier version, without seed and size of the data, can still be read") {
    Metadata metadata = describe(checkpoint_at(3));
    CHECK(metadata.erase("coxswain.seed") == 1);
    CHECK(metadata.erase("coxswain.samples") == 1);
    Checkpoint read;
    CHECK(read_description(metadata, read).ok());
    CHECK(read.position.cursor == 24);
    CHECK_FALSE(read.position.seed.has_value());
    CHECK(read.position.samples == 0);
  }

  TEST_CASE("a loss scaler is kept to the bit, and a damaged one is refused by name") {
    const TempFolder folder;
    auto saves = open(folder.path());
    Checkpoint made = checkpoint_at(3);
    made.position.scaler = ScalerState{0.1f * 65536, 41, 2, 3.7f, 1e-30f, 5};
    REQUIRE(saves.write(made, nullptr, 2).ok());
    const auto read = CheckpointFolder::read(*saves.newest());
    REQUIRE(read.ok());
    REQUIRE(read->position.scaler.has_value());
    CHECK((*read->position.scaler == *made.position.scaler));

    made.position.scaler->scale = std::numeric_limits<float>::infinity();
    REQUIRE(saves.write(made, nullptr, 2).ok());
    const auto damaged = CheckpointFolder::read(*saves.newest());
    CHECK_FALSE(damaged.ok());
    CHECK(damaged.status().message().find("loss scale") != std::string::npos);
  }

  TEST_CASE("control state is optional and comes back equal") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(folder.write(checkpoint_at(1), nullptr, 2).ok());
    CHECK(CheckpointFolder::read_control(*folder.newest()).status().code() ==
          StatusCode::not_found);
    JobFacts job;
    job.world_size = 2;
    ControlState state;
    state.plan = initial_plan(job);
    state.plan.id.number = 4;
    REQUIRE(folder.write(checkpoint_at(2), &state, 2).ok());
    const auto read = CheckpointFolder::read_control(*folder.newest());
    REQUIRE(read.ok());
    CHECK(read->plan.id.number == 4);
  }

  TEST_CASE("ranks that open the same folder at the same time all may") {
    const TempFolder temp;
    std::atomic<int> refused{0};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&] {
        for (int i = 0; i < 300; ++i) {
          if (!CheckpointFolder::open(temp.path() / "saves").ok()) ++refused;
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    CHECK(refused == 0);
    CHECK(std::filesystem::is_empty(temp.path() / "saves"));
  }

  TEST_CASE("only the newest ones are kept") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    for (const std::uint64_t step : {5, 10, 15}) {
      REQUIRE(folder.write(checkpoint_at(step), nullptr, 2).ok());
    }
    CHECK(temp.files() == 2);
    CHECK(newest_name(folder) == "step-000000000015");
    REQUIRE(folder.write(checkpoint_at(20), nullptr, 1).ok());
    CHECK(temp.files() == 1);
  }

  TEST_CASE("a save of an earlier step replaces those that a rollback gave up") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    for (const std::uint64_t step : {10, 20, 30}) {
      REQUIRE(folder.write(checkpoint_at(step), nullptr, 3).ok());
    }
    REQUIRE(folder.write(checkpoint_at(15), nullptr, 3).ok());
    CHECK(newest_name(folder) == "step-000000000015");
    CHECK(temp.files() == 2);
  }

  TEST_CASE("folders of other names are somebody's own: never resumed from, never removed") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    const std::string own[] = {"step-best", "step-000000000010-good", "step-000000000099.old",
                               "step-5", "step-"};
    for (const std::string& name : own) std::filesystem::create_directory(temp / name);
    CHECK(newest_name(folder) == "none");
    for (const std::uint64_t step : {10, 20, 30}) {
      REQUIRE(folder.write(checkpoint_at(step), nullptr, 1).ok());
    }
    CHECK(newest_name(folder) == "step-000000000030");
    for (const std::string& name : own) CHECK(std::filesystem::exists(temp / name));
    CHECK_FALSE(std::filesystem::exists(temp / "step-000000000020"));
  }

  TEST_CASE("a step can be saved again") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(folder.write(checkpoint_at(10, 5), nullptr, 1).ok());
    REQUIRE(folder.write(checkpoint_at(10, 9), nullptr, 1).ok());
    CHECK(CheckpointFolder::read(*folder.newest())->model[0].tensor.numel() == 9);
    CHECK(temp.files() == 1);
  }

  TEST_CASE("what a crash left half written is no save, and goes with the next one") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(folder.write(checkpoint_at(10), nullptr, 2).ok());
    std::filesystem::create_directory(temp / ".writing-step-000000000020");
    temp.write(".writing-step-000000000020/model.safetensors", "half");
    CHECK(newest_name(folder) == "step-000000000010");
    REQUIRE(folder.write(checkpoint_at(20), nullptr, 2).ok());
    CHECK(temp.files() == 2);
    CHECK(CheckpointFolder::read(*folder.newest())->position.step == 20);
  }

  TEST_CASE("damaged saves are errors that name the file") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    const auto damage = [&](const std::string& name, const std::string& bytes) {
      REQUIRE(folder.write(checkpoint_at(10), nullptr, 2).ok());
      temp.write("step-000000000010/" + name, bytes);
      const auto read = CheckpointFolder::read(*folder.newest());
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().message().find(name) != std::string::npos);
    };
    damage("model.safetensors", "");
    damage("optimizer.safetensors", "nonsense, but longer than a header");
    damage("model.safetensors", read_bytes(temp / "step-000000000010/optimizer.safetensors"));
    REQUIRE(folder.write(checkpoint_at(10), nullptr, 2).ok());
    std::filesystem::remove(temp / "step-000000000010/optimizer.safetensors");
    CHECK_FALSE(CheckpointFolder::read(*folder.newest()).ok());
  }

  TEST_CASE("a full disk leaves the earlier save and nothing half written") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(folder.write(checkpoint_at(10), nullptr, 1).ok());
    {
      const SmallFilesOnly full_disk(4096);
      const Status written = folder.write(checkpoint_at(20, 100000), nullptr, 1);
      CHECK(written.code() == StatusCode::resource_exhausted);
    }
    CHECK(temp.files() == 1);
    CHECK(CheckpointFolder::read(*folder.newest())->position.step == 10);
  }

  TEST_CASE("a directory that cannot be is an error that says what to set") {
    const TempFolder temp;
    temp.write("file", "x");
    const auto opened = CheckpointFolder::open(temp / "file/saves");
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.status().message().find("checkpoint.directory") != std::string::npos);
  }

  TEST_CASE("the fingerprint knows names, shapes and types, not values") {
    const auto print = [](const char* name, at::Tensor tensor) {
      return fingerprint(std::vector<NamedTensor>{{name, std::move(tensor)}});
    };
    const auto base = print("w", torch::zeros({2, 3}));
    CHECK(base == print("w", torch::ones({2, 3})));
    CHECK(base != print("v", torch::zeros({2, 3})));
    CHECK(base != print("w", torch::zeros({3, 2})));
    CHECK(base != print("w", torch::zeros({2, 3}, at::kDouble)));
    CHECK(base != fingerprint(std::vector<NamedTensor>{}));
  }
}
