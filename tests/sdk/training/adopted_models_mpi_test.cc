// The example models in adopting loops, beside loops that average by hand: every loss and every
// weight has the same bits.
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/error.h"
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

// Trained in turn, each by its own optimizer: one model, or the two of a GAN.
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

enum class Look { never, before_update, after_update };
enum class Looking { all_ranks, rank_0 };

// Trains with equal batches on all ranks. The program looks at its weights with gradients on.
Tensors train_looking(Session* session, Look look, Looking who) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::Tanh(), torch::nn::Linear(12, 1));
  if (session != nullptr) session->adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  const bool looks = session == nullptr || who == Looking::all_ranks || session->rank() == 0;
  double seen = 0;
  const auto look_if = [&](Look when) {
    if (!looks || look != when) return;
    for (const at::Tensor& p : net->parameters()) seen += p.norm().item<double>();
    seen += net->forward(torch::ones({2, 6})).sum().item<double>();
  };
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = torch::ones({5, 6}) * (step + 1);
    optimizer.zero_grad();
    net->forward(x).pow(2).mean().backward();
    look_if(Look::before_update);
    optimizer.step();
    look_if(Look::after_update);
  }
  Tensors weights;
  for (const at::Tensor& p : net->parameters()) weights.push_back(p.detach().clone());
  return weights;
}

TEST_SUITE("adopted models") {
  TEST_CASE("a loop is found in steps when it looks at its weights around the update") {
    const Tensors plain = train_looking(nullptr, Look::never, Looking::all_ranks);
    for (const Look look : {Look::before_update, Look::after_update}) {
      for (const Looking who : {Looking::all_ranks, Looking::rank_0}) {
        CAPTURE(static_cast<int>(look));
        CAPTURE(static_cast<int>(who));
        Session session = solo_session({"--cox.memory.force=*=recompute"});
        CHECK(same(plain, train_looking(&session, look, who)));
        CHECK(action_of(session.plan(), RankId(0), BlockId(0)) != MemoryAction::keep);
        session.finish();
      }
    }
  }

  TEST_CASE("an update on another thread ends a step, too") {
    Session session = solo_session({"--cox.memory.force=*=recompute"});
    torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::Tanh(),
                              torch::nn::Linear(12, 1));
    session.adopt(*net);
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      net->forward(torch::ones({5, 6})).pow(2).mean().backward();
      std::thread([&optimizer] { optimizer.step(); }).join();
    }
    CHECK(action_of(session.plan(), RankId(0), BlockId(0)) != MemoryAction::keep);
    session.finish();
  }

  TEST_CASE("a step that asks for the gradient of a leaf in no graph is planned") {
    Session session = solo_session({"--cox.memory.force=*=recompute"});
    torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::Tanh(),
                              torch::nn::Linear(12, 1));
    session.adopt(*net);
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    const at::Tensor unused = torch::ones({3}, torch::requires_grad());
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x = torch::ones({5, 6}, torch::requires_grad());
      const at::Tensor y = net->forward(x).sum();
      const auto slopes = torch::autograd::grad({y}, {x, unused}, {}, true, true, true);
      CHECK_FALSE(slopes[1].defined());
      optimizer.zero_grad();
      (y + slopes[0].pow(2).sum()).backward();
      optimizer.step();
    }
    CHECK(action_of(session.plan(), RankId(0), BlockId(0)) != MemoryAction::keep);
    session.finish();
  }

  TEST_CASE("ranks that train different models in one step are an error at once") {
    Session session = solo_session();
    torch::nn::Linear first(6, 1), second(6, 1);
    session.adopt(*first, {.name = "first"});
    session.adopt(*second, {.name = "second"});
    const auto train = [&](int step) {
      const bool other = step == 5 && session.rank() == 1;
      const at::Tensor loss = (other ? second : first)->forward(torch::ones({5, 6})).mean();
      first->zero_grad();
      second->zero_grad();
      loss.backward();
    };
    for (int step = 0; step < 5; ++step) train(step);
    if (session.world_size() > 1)
      CHECK_THROWS_WITH_AS(train(5), doctest::Contains("of other tensors on rank 1"), Error);
    session.finish();
  }

  TEST_CASE("a step that one rank alone cannot run again is kept on all ranks") {
    Session session = solo_session({"--cox.memory.force=*=recompute"});
    torch::manual_seed(3);
    torch::nn::Linear net(6, 1);
    session.adopt(*net);
    if (session.rank() == 0)
      net->weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      net->forward(torch::ones({5, 6})).mean().backward();
      const double both = (2.0 + (session.world_size() - 1)) / session.world_size();
      CHECK(sdk_test::same_bits(net->weight.grad(), torch::full({1, 6}, both)));
      optimizer.step();
    }
    CHECK(action_of(session.plan(), RankId(0), BlockId(0)) == MemoryAction::keep);
    session.finish();
  }

  TEST_CASE("each model trains with the bits of a loop that averages by hand") {
    for (std::size_t m = 0; m < plain_models::kModels; ++m) {
      CAPTURE(m);
      const auto fresh = [m] { return Players{plain_models::model_at(m, 1)}; };
      CHECK(same(train(fresh(), Loop::by_hand), train(fresh(), Loop::adopted)));
    }
  }

  TEST_CASE("models that are detached after a first training make room for others") {
    const auto run = [](const std::function<void(torch::nn::Module&, const char*)>& adopt,
                        const std::function<void(torch::nn::Module&)>& detach) {
      torch::manual_seed(3);
      torch::nn::Sequential encoder(torch::nn::Linear(6, 8), torch::nn::Tanh());
      Tensors seen;
      const auto train = [&](torch::nn::Sequential head, int width) {
        adopt(*encoder, "encoder");
        adopt(*head, "head");
        std::vector<at::Tensor> all = encoder->parameters();
        for (const at::Tensor& p : head->parameters()) all.push_back(p);
        torch::optim::SGD optimizer(all, 0.1);
        for (int step = 0; step < 4; ++step) {
          optimizer.zero_grad();
          const at::Tensor x = torch::ones({5, 6}) * (step + 1);
          (head->forward(encoder->forward(x)) - width).pow(2).mean().backward();
          optimizer.step();
        }
        for (const at::Tensor& p : all) seen.push_back(p.detach().clone());
        detach(*encoder);
      };
      train(torch::nn::Sequential(torch::nn::Linear(8, 6)), 1);
      train(torch::nn::Sequential(torch::nn::Linear(8, 2)), 2);
      return seen;
    };
    const auto nothing = [](torch::nn::Module&) {};
    const Tensors plain = run([](torch::nn::Module&, const char*) {}, nothing);
    Session session = solo_session();
    const Tensors adopted = run(
        [&](torch::nn::Module& model, const char* name) { session.adopt(model, {.name = name}); },
        [&](torch::nn::Module& model) { session.detach(model); });
    session.finish();
    CHECK(same(plain, adopted));
  }

  TEST_CASE("so do the two players of a GAN, each with its own optimizer") {
    const auto fresh = [] { return plain_models::make_dcgan_players(1); };
    CHECK(same(train(fresh(), Loop::by_hand), train(fresh(), Loop::adopted)));
  }

  TEST_CASE("a gradient that the program keeps has its values after later steps") {
    auto session = solo_session();
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::Tanh(),
                              torch::nn::Linear(12, 1));
    session.adopt(*net);
    Tensors kept, copies;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      torch::manual_seed(10 * step + session.rank());
      net->forward(torch::randn({8, 6})).pow(2).mean().backward();
      kept.push_back(net->parameters()[static_cast<std::size_t>(step)].grad());
      kept.push_back(net->parameters()[0].grad().detach().flatten());
      for (std::size_t i = copies.size(); i < kept.size(); ++i) copies.push_back(kept[i].clone());
    }
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(sdk_test::same_bits(kept[i], copies[i]));
    session.finish();
  }
}

}  // namespace
