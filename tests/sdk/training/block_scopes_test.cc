// Blocks opened by hand: steered and reported like found ones, in the loop of an adopted model and
// with a Trainer.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/block.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/training/capabilities.h"
#include "small_training.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/product_probe.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Flags = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

// A function without parameters saves half of its tensors.
struct MixerImpl : torch::nn::Module {
  MixerImpl() {
    torch::manual_seed(3);
    in = register_module("in", torch::nn::Linear(6, 64));
    out = register_module("out", torch::nn::Linear(64, 3));
  }
  at::Tensor mix(const at::Tensor& x) {
    const auto scope = cox::block("mix");
    if (at::GradMode::is_enabled()) inside = cox::test::format_of_products(out->weight);
    at::Tensor y = torch::dropout(torch::tanh(x) * torch::sigmoid(x), 0.2, is_training());
    return torch::exp(-y * y) * y;
  }
  at::Tensor loss(const at::Tensor& x) {
    const at::Tensor wide = in(x);
    if (at::GradMode::is_enabled()) outside = cox::test::format_of_products(in->weight);
    const at::Tensor mixed = mix(wide);
    held_bytes = cox::detail::counted_memory().live_bytes;
    return out(mixed).pow(2).mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  Precision inside = Precision::fp32, outside = Precision::fp32;
  std::int64_t held_bytes = 0;
};
TORCH_MODULE(Mixer);

struct Trained {
  Tensors state;  // losses and parameters
  std::vector<std::string> names;
  double scope_seconds = 0;
  MemoryAction action = MemoryAction::keep;
  std::int64_t held_bytes = 0;
  Precision inside = Precision::fp32, outside = Precision::fp32;
};

constexpr std::uint64_t kSteps = 4;

at::Tensor batch() {
  return torch::linspace(-2, 2, 6 * 64).view({64, 6});
}

void look_at(Session& session, Mixer& model, Trained& trained) {
  auto& blocks = session.capabilities().blocks;
  trained.names = blocks.names();
  std::vector<BlockTime> times(blocks.size());
  blocks.measurements().read_times(times);
  for (std::size_t b = 0; b < times.size(); ++b) {
    if (trained.names[b] == "mix") trained.scope_seconds = times[b].forward_seconds;
  }
  if (trained.names.size() == 3) trained.action = action_of(session.plan(), RankId(0), BlockId(2));
  for (const at::Tensor& p : model->parameters()) trained.state.push_back(p.detach().clone());
  trained.held_bytes = model->held_bytes;
  trained.inside = model->inside;
  trained.outside = model->outside;
}

Trained train_adopted(const Flags& flags) {
  auto session = solo_session(flags);
  Mixer model;
  session.adopt(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Trained trained;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch());
    loss.backward();
    optimizer.step();
    trained.state.push_back(loss.detach().clone());
  }
  look_at(session, model, trained);
  session.finish();
  return trained;
}

Trained train_with_trainer(const Flags& flags) {
  auto session = solo_session(flags);
  Mixer model;
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  TrainerOptions options;
  options.steps = kSteps;
  options.global_batch = 4;
  Trainer trainer(session, *model, optimizer, options);
  Trained trained;
  const SmallData data;
  for (auto& step : trainer.steps(data)) {
    const at::Tensor loss = step.forward([&] { return model->loss(batch()); });
    step.backward(loss);
    step.update();
    trained.state.push_back(loss.detach().clone());
  }
  look_at(session, model, trained);
  session.finish();
  return trained;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

const Flags kNamed = {"--cox.blocks.scopes=mix"};
const Flags kRecomputed = {"--cox.blocks.scopes=mix", "--cox.memory.force=mix=recompute"};
const Flags kNarrow = {"--cox.blocks.scopes=mix", "--cox.precision.force=mix=bf16"};

}  // namespace

TEST_SUITE("block scopes") {
  TEST_CASE("a scope is a block of the job, with times of its own, and changes no bit") {
    for (const auto train : {train_adopted, train_with_trainer}) {
      const Trained named = train(kNamed);
      CHECK(named.names == std::vector<std::string>{"in", "out", "mix"});
      CHECK(named.scope_seconds > 0);
      const Trained recomputed = train(kRecomputed);
      CHECK(is_recompute(recomputed.action));
      CHECK(same(named.state, recomputed.state));
    }
  }

  TEST_CASE("what a recomputed scope saved is not held") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    for (const auto train : {train_adopted, train_with_trainer}) {
      const std::int64_t one_bytes =
          batch().size(0) * 64 * static_cast<std::int64_t>(sizeof(float));
      CHECK(train(kRecomputed).held_bytes <= train(kNamed).held_bytes - one_bytes);
    }
  }

  TEST_CASE("a format holds for the products of the scope and for no others") {
    for (const auto train : {train_adopted, train_with_trainer}) {
      const Trained narrow = train(kNarrow);
      CHECK(narrow.inside == Precision::bf16);
      CHECK(narrow.outside == Precision::fp32);
    }
  }

  TEST_CASE("a scope that is not named in the settings is an error out of the forward pass") {
    CHECK_THROWS_WITH_AS(train_adopted({}), doctest::Contains("blocks.scopes, found mix"), Error);
  }

  TEST_CASE("without a session, and in an evaluation, a scope does nothing") {
    Mixer model;
    CHECK(std::isfinite(model->loss(batch()).item<double>()));
    auto session = solo_session();
    session.adopt(*model);
    const torch::NoGradGuard no_grad;
    CHECK(std::isfinite(model->loss(batch()).item<double>()));
  }
}
