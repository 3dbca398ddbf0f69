// The models of the examples in loops that only adopt them, beside loops that average by hand:
// every loss and every weight has the same bits.
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/manual.h"
#include "coxswain/session.h"
#include "sdk/examples/models/models.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using plain_models::ModelCase;
using Tensors = std::vector<at::Tensor>;

constexpr int kSteps = 4;

// Trained in turn, each by an optimizer of its own; one, or the two of a GAN.
using Players = std::vector<ModelCase>;

enum class Loop { adopted, by_hand };

// Returns the losses of this rank, then all weights.
Tensors train(const Players& players, Loop loop) {
  auto session = solo_session();
  std::optional<ManualParallel> ranks;
  if (loop == Loop::by_hand) ranks.emplace(session);
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (const ModelCase& it : players) {
    if (loop == Loop::adopted) session.adopt(*it.model, {.name = it.name});
    if (ranks) ranks->sync_parameters(it.model->parameters());
    optimizers.push_back(std::make_unique<torch::optim::AdamW>(it.model->parameters(), 0.01));
  }
  torch::manual_seed(5);
  Tensors seen;
  for (int i = 0; i < kSteps; ++i) {
    const auto batch = static_cast<std::uint64_t>(10 * i + session.rank());
    for (std::size_t p = 0; p < players.size(); ++p) {
      std::optional<StepScope> step;
      if (ranks) step.emplace(session.step());
      optimizers[p]->zero_grad();
      const at::Tensor loss = players[p].loss(batch);
      loss.backward();
      if (ranks) ranks->all_reduce_gradients(*step, players[p].model->parameters());
      optimizers[p]->step();
      if (ranks) ranks->close(*step);
      seen.push_back(loss.detach().clone());
    }
  }
  session.finish();
  for (const ModelCase& it : players) {
    for (const at::Tensor& p : it.model->parameters()) seen.push_back(p.detach().clone());
  }
  return seen;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

TEST_SUITE("adopted models") {
  TEST_CASE("each model trains with the bits of a loop that averages by hand") {
    for (std::size_t m = 0; m < plain_models::kModels; ++m) {
      CAPTURE(m);
      const auto fresh = [m] { return Players{plain_models::model_at(m, 1)}; };
      CHECK(same(train(fresh(), Loop::by_hand), train(fresh(), Loop::adopted)));
    }
  }

  TEST_CASE("so do the two players of a GAN, each with its own optimizer") {
    const auto fresh = [] { return plain_models::make_dcgan_players(1); };
    CHECK(same(train(fresh(), Loop::by_hand), train(fresh(), Loop::adopted)));
  }
}

}  // namespace
