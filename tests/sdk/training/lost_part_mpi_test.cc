// A save whose part one rank cannot write, while the others can.
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coxswain/session.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"
#include "tests/sdk/training/small_training.h"
#include "tests/support/small_files.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

struct Run {
  std::vector<at::Tensor> weights;
  std::string end;  // error of the session; empty if there is none
  int last_rank = 0;
};

enum class LastRank : bool { has_room, has_a_full_disk };

// Saves after every two updates, and continues from the newest save.
Run train(const std::string& folder, std::int64_t steps, LastRank disk, const char* resume) {
  auto session =
      solo_session({"--cox.checkpoint.directory=" + folder, "--cox.checkpoint.every_steps=2",
                    "--cox.checkpoint.keep=9", std::string("--cox.checkpoint.resume=") + resume});
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(4, 600), torch::nn::Linear(600, 1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  session.adopt(*net);
  Run run;
  run.last_rank = session.world_size() - 1;
  std::optional<test::SmallFiles> full;
  if (disk == LastRank::has_a_full_disk && session.rank() == run.last_rank) full.emplace(4096);
  std::int64_t epoch = 0, step = 0;
  run.end = error_of([&] {
    for (; step < steps; ++step) {
      session.keep(optimizer, epoch, step);
      optimizer.zero_grad();
      const at::Tensor x = torch::sin(torch::arange(8, torch::kFloat) + static_cast<double>(step));
      net->forward(x.view({2, 4})).square().mean().backward();
      optimizer.step();
    }
    session.finish();
  });
  full.reset();
  if (!run.end.empty()) error_of([&] { session.finish(); });
  for (const at::Tensor& weight : net->parameters()) run.weights.push_back(weight.detach().clone());
  return run;
}

}  // namespace

TEST_SUITE("a save that one rank cannot write") {
  TEST_CASE("is given up on all ranks, which name that rank, and the one before is whole") {
    auto probe = solo_session();
    const SharedFolder shared(probe);
    probe.finish();
    const Run whole = train(shared.text() + "/whole", 6, LastRank::has_room, "off");
    CHECK(whole.end.empty());
    const std::string folder = shared.text() + "/full";
    CHECK(train(folder, 3, LastRank::has_room, "off").end.empty());
    const Run lost = train(folder, 6, LastRank::has_a_full_disk, "on");
    CHECK_FALSE(lost.end.empty());
    if (lost.last_rank > 0)
      CHECK(lost.end.find("rank " + std::to_string(lost.last_rank)) != std::string::npos);
    const auto saves = io::saves_in(folder);
    REQUIRE(saves.size() == 1);
    CHECK(*io::step_of_save(saves[0]) == 2);
    CHECK(io::verify_save(saves[0], io::VerifyDepth::pieces).ok());
    const Run resumed = train(folder, 6, LastRank::has_room, "on");
    CHECK(resumed.end.empty());
    CHECK(io::saves_in(folder).size() == 2);
    for (std::size_t i = 0; i < whole.weights.size(); ++i)
      CHECK(sdk_test::same_bits(resumed.weights[i], whole.weights[i]));
  }
}
