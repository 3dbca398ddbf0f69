// TorchScript modules from a file in adopting loops, with TorchScript's graph optimiser off and on:
// averaged like any model, and planned if their operators run one by one.
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/manual.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/script_mirror.h"
#include "sdk/src/training/capabilities.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using torch::jit::GraphOptimizerEnabledGuard;
using Tensors = std::vector<at::Tensor>;
using Flags = std::vector<std::string>;

constexpr std::int64_t kWidth = 8;
constexpr int kSteps = 6;

constexpr const char* kLayer = R"JIT(
def forward(self, x):
    y = torch.batch_norm(torch.addmm(self.b, x, self.w), None, None, self.mean, self.var, True, 0.1, 1e-5, False)
    return x + torch.dropout(torch.tanh(y), 0.1, True) * torch.sigmoid(y)
)JIT";
constexpr const char* kBody = R"JIT(
def forward(self, x):
    return self.third.forward(self.second.forward(self.first.forward(x)))
)JIT";
constexpr const char* kNet = R"JIT(
def forward(self, x):
    return torch.mm(self.body.forward(x), self.head)
)JIT";

torch::jit::Module make_layer() {
  torch::jit::Module layer("Layer");
  layer.register_parameter("w", (at::randn({kWidth, kWidth}) * 0.3).set_requires_grad(true), false);
  layer.register_parameter("b", at::zeros({kWidth}).set_requires_grad(true), false);
  layer.register_buffer("mean", at::zeros({kWidth}));
  layer.register_buffer("var", at::ones({kWidth}));
  layer.define(kLayer);
  return layer;
}

// Returns a script from a file, with three layers of one class.
torch::jit::Module make_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::jit::Module body("Body");
  for (const char* name : {"first", "second", "third"}) body.register_module(name, make_layer());
  body.define(kBody);
  torch::jit::Module net("Net");
  net.register_module("body", body);
  net.register_parameter("head", at::randn({kWidth, 1}).set_requires_grad(true), false);
  net.define(kNet);
  const TempFolder folder;
  net.save((folder.path() / "net.pt").string());
  return torch::jit::load((folder.path() / "net.pt").string());
}

Tensors parameters_of(const torch::jit::Module& net) {
  Tensors all;
  for (const at::Tensor& p : net.parameters()) all.push_back(p);
  return all;
}

// Our calls between backward() and the update, and after it; empty in an adopted loop.
struct ByHand {
  std::function<void()> before, average, close;
};

// The plain loop. Returns losses, parameters and buffers.
Tensors train(torch::jit::Module& net, int rank, const ByHand& by_hand = {}) {
  torch::optim::SGD optimizer(parameters_of(net), torch::optim::SGDOptions(0.05).momentum(0.9));
  at::Generator batches = at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank));
  torch::manual_seed(7);
  Tensors state;
  for (int i = 0; i < kSteps; ++i) {
    if (by_hand.before) by_hand.before();
    const at::Tensor x = at::randn({16, kWidth}, batches);
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(net.forward({x}).toTensor(), x.sum(1, true));
    loss.backward();
    if (by_hand.average) by_hand.average();
    optimizer.step();
    if (by_hand.close) by_hand.close();
    state.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : net.parameters()) state.push_back(p.detach().clone());
  for (const at::Tensor& b : net.buffers()) state.push_back(b.detach().clone());
  return state;
}

Tensors train_by_hand() {
  auto session = solo_session();
  torch::jit::Module net = make_net(1);
  ManualParallel ranks(session);
  ranks.sync_parameters(parameters_of(net));
  std::optional<StepScope> step;
  Tensors state = train(net, session.rank(),
                        {.before = [&] { step.emplace(session.step()); },
                         .average = [&] { ranks.all_reduce_gradients(*step, parameters_of(net)); },
                         .close =
                             [&] {
                               ranks.close(*step);
                               step.reset();
                             }});
  session.finish();
  return state;
}

struct Adopted {
  Tensors state;
  std::vector<std::string> blocks{};
  std::vector<cox::detail::PinnedBlock> pinned{};
  std::size_t steered = 0;  // blocks not kept by the last plan
  std::uint64_t steps = 0;  // before the last step was closed
};

Adopted train_adopted(const Flags& settings = {}) {
  auto session = solo_session(settings);
  // Adopting gives all ranks rank 0's weights.
  torch::jit::Module net = make_net(session.rank() == 0 ? 1 : 50);
  session.adopt(net);
  Adopted adopted{train(net, session.rank())};
  adopted.steps = session.state().step().steps_ended();
  const auto& blocks = session.capabilities().blocks;
  adopted.blocks = blocks.names();
  adopted.pinned = blocks.pinned();
  for (std::size_t b = 0; b < adopted.blocks.size(); ++b) {
    const auto action =
        action_of(session.plan(), RankId(session.rank()), BlockId(static_cast<BlockId::rep>(b)));
    adopted.steered += action != MemoryAction::keep;
  }
  session.finish();
  return adopted;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

TEST_SUITE("adopted scripts") {
  TEST_CASE("a script is adopted with the bits of a loop that averages by hand, and in steps") {
    for (const bool optimised : {false, true}) {
      CAPTURE(optimised);
      const GraphOptimizerEnabledGuard guard(optimised);
      const Tensors expected = train_by_hand();
      const Adopted found = train_adopted();
      CHECK(same(expected, found.state));
      CHECK(found.steps == kSteps - 1);
    }
  }

  TEST_CASE("its blocks are submodules of one class, whatever numbers a file gives to classes") {
    const Adopted found = train_adopted();
    const std::vector<std::string> names = {"model", "body.first", "body.second", "body.third"};
    CHECK(
        std::is_permutation(found.blocks.begin(), found.blocks.end(), names.begin(), names.end()));
  }

  TEST_CASE("with the optimiser off blocks are recomputed, with the bits of keep") {
    const GraphOptimizerEnabledGuard off(false);
    const Adopted found = train_adopted({"--cox.memory.force=*=recompute"});
    CHECK(same(train_by_hand(), found.state));
    CHECK(found.steered == found.blocks.size());
    CHECK(found.pinned.empty());
  }

  TEST_CASE("with the optimiser on every block is kept, and says why") {
    const GraphOptimizerEnabledGuard on(true);
    const Adopted found = train_adopted({"--cox.memory.force=*=recompute"});
    CHECK(same(train_by_hand(), found.state));
    REQUIRE(found.pinned.size() == found.blocks.size());
    CHECK(found.pinned[0].reason.find("optimiser is on") != std::string::npos);
  }

  TEST_CASE("a format holds with the optimiser off only") {
    for (const bool optimised : {false, true}) {
      CAPTURE(optimised);
      const GraphOptimizerEnabledGuard guard(optimised);
      const Adopted narrow = train_adopted({"--cox.precision.force=*=bf16"});
      CHECK(same(train_by_hand(), narrow.state) == optimised);
    }
  }

  TEST_CASE("a script that shares a submodule has it once, and a copy of a script is another one") {
    torch::manual_seed(1);
    torch::jit::Module shared = make_layer();
    torch::jit::Module net("Net");
    net.register_module("a", shared);
    net.register_module("b", shared);
    const auto mirror = cox::detail::ScriptMirror::of(net);
    CHECK(mirror->children()[0] == mirror->children()[1]);
    CHECK(mirror->parameters()[0].is_same(*net.parameters().begin()));
    CHECK(mirror->mirrors(net));
    CHECK_FALSE(mirror->mirrors(net.copy()));
  }

  TEST_CASE("a script is adopted once, and detached by itself") {
    auto session = solo_session();
    const torch::jit::Module net = make_net(1);
    session.adopt(net);
    std::string text;
    try {
      session.adopt(net);
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK(text.find("adopt each model once") != std::string::npos);
    session.detach(net);
    const std::uint64_t before = cox::detail::operators_shown();
    torch::jit::Module copy = net;
    static_cast<void>(copy.forward({at::randn({16, kWidth})}));
    CHECK(cox::detail::operators_shown() == before);
  }
}

}  // namespace
