#include <random>

#include "coxswain/wrap.h"
#include "recompute_support.h"

#include <doctest/doctest.h>

namespace {

using namespace memory_test;

using Training = std::vector<Tensor> (*)(const Plan&, bool autocast, int steps);

const Plan kPlans[] = {{kRecompute}, {kTile}, {kRecompute, kKeep}, {kKeep, kRecompute, kTile}};

void check_all_plans(Training training, int steps = 2) {
  for (const bool autocast : {false, true}) {
    const std::vector<Tensor> kept = training({kKeep}, autocast, steps);
    for (const Plan& plan : kPlans) {
      CAPTURE(autocast);
      CAPTURE(&plan - kPlans);
      CHECK(same_bits(kept, training(plan, autocast, steps)));
    }
  }
}

}  // namespace

TEST_SUITE("sdk.memory.recompute") {
  TEST_CASE("a transformer with dropout trains to the same bits under every plan") {
    check_all_plans(train_blocks<blocks_test::GptNet>);
  }
  TEST_CASE("an MLP with dropout and batch norm keeps its statistics and counters") {
    check_all_plans(train_blocks<blocks_test::MlpNet>);
  }
  TEST_CASE("convolutions with in-place activations train to the same bits") {
    check_all_plans(train_blocks<blocks_test::ConvNet>);
  }
  TEST_CASE("weights shared by blocks, and passed as inputs, train to the same bits") {
    check_all_plans(train_blocks<SharedNet>);
  }
  TEST_CASE("blocks that tile, and a tiled loss, train to the same bits") {
    check_all_plans(train_tiles);
  }
  TEST_CASE("GPT-2 with dropout trains to the same bits over 20 steps") {
    check_all_plans(train_gpt2, 20);
  }

  TEST_CASE("two hundred random plans change no bit of GPT-2, of batch norm or of tiles") {
    const Training trainings[] = {train_gpt2, train_blocks<blocks_test::MlpNet>, train_tiles};
    for (const Training training : trainings) {
      const std::vector<Tensor> kept = training({kKeep}, false, 1);
      const std::vector<Tensor> kept_cast = training({kKeep}, true, 1);
      std::mt19937 random(5);
      for (int trial = 0; trial < 67; ++trial) {
        Plan plan;
        for (int b = 0; b < 4; ++b) {
          plan.push_back(std::vector<MemoryAction>{kKeep, kRecompute, kTile}[random() % 3]);
        }
        const bool autocast = random() % 2 == 0;
        CAPTURE(trial);
        CHECK(same_bits(autocast ? kept_cast : kept, training(plan, autocast, 1)));
      }
    }
  }

  TEST_CASE("gradients of gradients of GPT-2 with plain attention have the same bits") {
    const auto second_order = [](MemoryAction action) {
      torch::manual_seed(7);
      gpt2::Gpt2 net(tiny_gpt2(), gpt2::Attention::plain);
      BlockRegistry registry = *BlockRegistry::discover(*net);
      steer(registry, {action});
      const Tensor tokens = torch::arange(24).view({2, 12});
      const std::vector<Tensor> parameters = net->parameters();
      const auto first = torch::autograd::grad({net->loss(tokens, tokens + 1)}, parameters, {},
                                               /*retain_graph=*/true, /*create_graph=*/true);
      Tensor norm = first[0].pow(2).sum();
      for (std::size_t i = 1; i < first.size(); ++i) norm = norm + first[i].pow(2).sum();
      norm.backward();
      std::vector<Tensor> seen = {norm.detach()};
      for (const Tensor& parameter : parameters) seen.push_back(parameter.grad());
      CHECK(registry.pinned().empty());
      return seen;
    };
    CHECK(same_bits(second_order(kKeep), second_order(kRecompute)));
  }

  TEST_CASE("an action may change between steps, and while a backward pass is still to come") {
    const auto run = [](bool changing) {
      torch::manual_seed(3);
      blocks_test::GptNet net;
      BlockRegistry registry = *BlockRegistry::discover(*net);
      const auto act = [&](MemoryAction action) { steer(registry, {changing ? action : kKeep}); };
      act(kRecompute);
      const Tensor first = loss_of(net->forward(net->example(), Calls::through_run));
      act(kKeep);
      const Tensor second = loss_of(net->forward(net->example(), Calls::through_run));
      act(kTile);
      first.backward();
      act(kRecompute);
      second.backward();
      std::vector<Tensor> gradients;
      for (const Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
      return gradients;
    };
    CHECK(same_bits(run(false), run(true)));
  }

  TEST_CASE("elements of a wrapped Sequential are recomputed too") {
    const auto run = [](MemoryAction action) {
      torch::manual_seed(3);
      torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                                torch::nn::Dropout(0.3), torch::nn::Linear(8, 2));
      CHECK(cox::wrap(net).empty());
      BlockRegistry registry = *BlockRegistry::discover(*net);
      REQUIRE(registry.size() == 4);
      steer(registry, {action});
      std::vector<Tensor> seen;
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        loss_of(net->forward(torch::linspace(-1, 1, 24).view({6, 4}))).backward();
        for (const Tensor& parameter : net->parameters()) seen.push_back(parameter.grad().clone());
      }
      for (const Tensor& buffer : net->buffers()) seen.push_back(buffer);
      CHECK(registry.pinned().empty());
      return seen;
    };
    CHECK(same_bits(run(kKeep), run(kRecompute)));
  }

  TEST_CASE("measuring a block in full changes nothing and counts what keep would save") {
    const auto saved = [](const Plan& plan) {
      torch::manual_seed(3);
      blocks_test::GptNet net;
      blocks_test::KeepingSink sink;
      BlockRegistry registry = *BlockRegistry::discover(*net);
      REQUIRE(registry.attach(sink).ok());
      REQUIRE(registry.measure(cox::detail::MeasureMode::full).ok());
      steer(registry, plan);
      std::vector<std::uint64_t> bytes;
      for (int step = 0; step < 2; ++step) {
        loss_of(net->forward(net->example(), Calls::through_run)).backward();
      }
      CHECK(sink.reports.size() == 4);
      for (const auto& report : sink.reports) bytes.push_back(report.measured.saved_bytes);
      return bytes;
    };
    CHECK(saved({kKeep}) == saved({kRecompute}));
    CHECK(saved({kKeep}).front() > 0);
  }

  TEST_CASE("a release and detach end every action") {
    blocks_test::GptNet net;
    blocks_test::KeepingSink sink;
    {
      BlockRegistry registry = *BlockRegistry::discover(*net);
      REQUIRE(registry.attach(sink).ok());
      steer(registry, {kRecompute});
      CHECK(net->blocks[0].gate()->active);
    }
    CHECK_FALSE(net->blocks[0].gate()->active);
    BlockRegistry registry = *BlockRegistry::discover(*net);
    steer(registry, {kRecompute});
    cox::detach(*net);
    CHECK_FALSE(net->blocks[0].gate()->active);
  }
}
