// Steps on a device with gradients that differ from run to run, as from fused attention. The
// gradients given to backward decide whether a block may be recomputed.
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/training/capabilities.h"
#include "small_text.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Returns gradients that differ each time, like those of kernels that add in any order.
at::Tensor unrepeatable(const at::Tensor& loss) {
  loss.register_hook([](const at::Tensor& gradient) {
    static double calls = 0;
    return gradient * (1 + 1e-6 * ++calls);
  });
  return loss;
}

// An operator whose result differs outside the training thread, as when it runs again in a backward
// pass on a device.
at::Tensor other_elsewhere(const at::Tensor& x) {
  static const std::thread::id here = std::this_thread::get_id();
  return x * (std::this_thread::get_id() == here ? 1.0 : 1.5);
}
TORCH_LIBRARY_FRAGMENT(coxswain, library) {
  library.def("test_other_elsewhere(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(coxswain, CompositeExplicitAutograd, library) {
  library.impl("test_other_elsewhere", &other_elsewhere);
}

struct GatedImpl : torch::nn::Module {
  GatedImpl() {
    torch::manual_seed(2);
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(6, 6));
  }
  at::Tensor loss(at::Tensor x) {
    static const auto gate_of = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("coxswain::test_other_elsewhere", "")
                                    .typed<at::Tensor(const at::Tensor&)>();
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor wide = layers->at<torch::nn::LinearImpl>(i).forward(x);
      x = wide * (i == 1 ? gate_of.call(wide.detach()) : wide.detach()).sigmoid();
    }
    return x.pow(2).mean();
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Gated);

std::size_t recomputed_in(const Session& session, std::size_t blocks) {
  std::size_t recomputed = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    if (action_of(session.plan(), kRoot, block) == MemoryAction::recompute) ++recomputed;
  }
  return recomputed;
}

void train_own(Session& session, gpt2::Gpt2& model,
               const std::function<at::Tensor(const at::Tensor&)>& change) {
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, steps(2));
  for (auto& step : trainer.steps(SmallText())) {
    step.backward(step.forward(
        [&] { return change(model->loss(step.batch().inputs, step.batch().targets)); }));
    step.update();
  }
}

}  // namespace

TEST_CASE("gradients that differ by themselves on a device are no reason to keep activations") {
  using Change = at::Tensor (*)(const at::Tensor& loss);
  const auto recomputed_on = [&](const std::string& device, Change change) {
    auto session = solo_session({"--cox.run.device=" + device, "--cox.memory.force=*=recompute"});
    gpt2::Gpt2 model = small_gpt();
    model->to(session.device());
    train_own(session, model, change);
    const auto& blocks = session.capabilities().blocks;
    CHECK(blocks.pinned().empty());
    return recomputed_in(session, blocks.size());
  };
  const std::size_t expected = recomputed_on("cuda", [](const at::Tensor& loss) { return loss; });
  CHECK(expected > 0);
  CHECK(recomputed_on("cuda", unrepeatable) == expected);
}

TEST_CASE("a block that its backward pass would compute otherwise is kept all the same") {
  auto session = solo_session({"--cox.run.device=cuda", "--cox.memory.force=*=recompute"});
  Gated model;
  model->to(session.device());
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, steps(2));
  const at::Tensor x = torch::linspace(-1, 1, 48).view({8, 6}).to(session.device());
  for (auto& step : trainer.steps(SmallText())) {
    step.backward(step.forward([&] { return unrepeatable(model->loss(x)); }));
    step.update();
  }
  const auto pinned = session.capabilities().blocks.pinned();
  REQUIRE(pinned.size() == 1);
  CHECK(pinned[0].block == BlockId(1));
}
