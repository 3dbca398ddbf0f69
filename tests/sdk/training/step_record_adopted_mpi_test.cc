// Fifty steps of every kind of adopted loop match their records, call by call. After an intended
// change, STEP_RECORDS=write in the environment writes the records anew; read the difference before
// the commit.
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coxswain/session.h"
#include "recorded_loop.h"
#include "step_record.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace sdk_test;

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int kLateStep = 20;

// Runs two backward passes before each update. With two models, the second is trained in every
// other step.
void run_adopted(const std::string& kind, int models, AdoptOptions adopt) {
  Recording recording;
  Session session = recording.start({}, adopt.only_watch ? PolicySet() : holding());
  std::vector<TwoBlocks> nets;
  Tensors parameters;
  for (int m = 0; m < models; ++m) {
    nets.emplace_back();
    adopt.name = models == 1 ? "" : concat("model", m);
    session.adopt(*nets.back(), adopt);
    for (const at::Tensor& p : nets.back()->parameters()) parameters.push_back(p);
  }
  torch::optim::SGD optimizer(parameters, 1.0 / 64);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    optimizer.zero_grad();
    for (int k = 0; k < 2; ++k) {
      for (int m = 0; m <= i % models; ++m)
        loss_of(nets[static_cast<std::size_t>(m)], inputs(4, i + session.rank())).backward();
      if (StepScope* step = session.open_step()) step->samples(4);
    }
    optimizer.step();
    if (session.stop_requested()) break;
  }
  recording.end();
  for (const TwoBlocks& net : nets) note_weights(recording, *net);
  session.finish();
  check_record(recording, kind);
}

// The places of a step at which a program does something of its own.
struct Habits {
  AdoptOptions adopt{};
  std::function<void(Session&, torch::optim::SGD&)> begins = [](auto&, auto&) {};
  std::function<at::Tensor(TwoBlocks&, const at::Tensor&)> loss = loss_of;
  std::function<void(Recording&, TwoBlocks&, const at::Tensor& loss)> before_update =
      [](auto&, auto&, auto&) {};
};

// Runs one backward pass before each update. The rank's gradients keep their tensors.
void run_with(const std::string& kind, const Habits& habits) {
  Recording recording;
  Session session = recording.start({}, holding());
  TwoBlocks net;
  session.adopt(*net, habits.adopt);
  torch::optim::SGD optimizer(net->parameters(), 1.0 / 64);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    habits.begins(session, optimizer);
    recording.note("the loop's body begins");
    optimizer.zero_grad(/*set_to_none=*/false);
    const at::Tensor loss = habits.loss(net, inputs(4, i + session.rank()));
    recording.note(session.open_step() != nullptr ? "a step is open" : "no step is open");
    loss.backward();
    habits.before_update(recording, net, loss);
    optimizer.step();
  }
  recording.end();
  note_weights(recording, *net);
  session.finish();
  check_record(recording, kind);
}

// Gives each parameter a gradient that the program holds, and adds the gradients to `held`.
void hold_gradients(torch::optim::SGD& optimizer, Tensors& held) {
  if (!held.empty()) return;
  for (at::Tensor& p : optimizer.param_groups()[0].params()) {
    held.push_back(at::zeros_like(p));
    p.mutable_grad() = held.back();
  }
}

// Ranks adopt a second model in the middle of training.
void run_late() {
  Recording recording;
  Session session = recording.start({}, holding());
  TwoBlocks first, second;
  torch::nn::init::constant_(second->a->weight, session.rank());
  session.adopt(*first, {.name = "first"});
  Tensors parameters = first->parameters();
  for (const at::Tensor& p : second->parameters()) parameters.push_back(p);
  torch::optim::SGD optimizer(parameters, 1.0 / 64);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    if (i == kLateStep) session.adopt(*second, {.name = "second"});
    optimizer.zero_grad();
    const at::Tensor x = inputs(4, i + session.rank());
    const at::Tensor loss = loss_of(first, x);
    (i < kLateStep ? loss : loss + loss_of(second, x)).backward();
    optimizer.step();
  }
  recording.end();
  note_weights(recording, *first);
  note_weights(recording, *second);
  session.finish();
  check_record(recording, "adopted_late");
}

torch::jit::Module two_products() {
  torch::jit::Module net("Net");
  for (const char* name : {"a", "b"})
    net.register_parameter(name, at::ones({4, 64}).set_requires_grad(true), false);
  net.define("def forward(self, x):\n  return torch.mm(x, self.a) + torch.mm(2 * x, self.b)\n");
  return net;
}

void run_script() {
  const torch::jit::GraphOptimizerEnabledGuard by_operators(false);
  Recording recording;
  Session session = recording.start({}, holding());
  torch::jit::Module net = two_products();
  session.adopt(net);
  Tensors parameters;
  for (const at::Tensor& p : net.parameters()) parameters.push_back(p);
  torch::optim::SGD optimizer(parameters, 1.0 / 64);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    optimizer.zero_grad();
    mean_of(net.forward({inputs(4, i + session.rank())}).toTensor()).backward();
    optimizer.step();
  }
  recording.end();
  note_sums(recording, "weights", parameters);
  session.finish();
  check_record(recording, "adopted_script");
}

// A checkpoint of the program's own: the forward pass runs without gradients, and backward() runs
// the pass again.
struct RunAgain : torch::autograd::Function<RunAgain> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            TwoBlocks* net) {
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    context->save_for_backward({x});
    return (*net)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* net = reinterpret_cast<TwoBlocks*>(context->saved_data["net"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach();
    const at::AutoGradMode on(true);
    torch::autograd::backward({(*net)(x)}, {gradients[0]});
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TEST_SUITE("records of adopted loops") {
  TEST_CASE("one model") {
    run_adopted("adopted", 1, {});
  }
  TEST_CASE("two models") {
    run_adopted("adopted_two", 2, {});
  }
  TEST_CASE("a model that is watched only") {
    run_adopted("adopted_watched", 1, {.only_watch = true});
  }
  TEST_CASE("a model that is adopted in the middle of training") {
    run_late();
  }
  TEST_CASE("a TorchScript model") {
    run_script();
  }
  TEST_CASE("a loop that is kept") {
    std::int64_t epoch = 0, batch = 0;
    run_with("adopted_kept", {.begins = [&](Session& session, torch::optim::SGD& optimizer) {
               session.keep(optimizer, epoch, batch);
             }});
  }
  TEST_CASE("a loop that holds gradients, and looks at parameters with gradients on") {
    Tensors held;
    run_with("adopted_looking",
             {.begins = [&](Session&, auto& optimizer) { hold_gradients(optimizer, held); },
              .before_update =
                  [&](Recording& recording, TwoBlocks& net, const at::Tensor&) {
                    note_sums(recording, "held gradients", held);
                    at::Tensor norm = at::zeros({});
                    for (const at::Tensor& p : net->parameters()) norm = norm + p.square().sum();
                  }});
  }
  TEST_CASE("a loop that reads the mean of its loss") {
    run_with("adopted_closure",
             {.adopt = {.closure_optimizer = ClosureOptimizer::yes},
              .before_update = [](Recording& recording, TwoBlocks&, const at::Tensor& loss) {
                note_sums(recording, "loss", {loss});
              }});
  }
  TEST_CASE("a loop that runs its forward pass again in backward()") {
    Tensors held;
    run_with("adopted_run_again",
             {.begins = [&](Session&, auto& optimizer) { hold_gradients(optimizer, held); },
              .loss =
                  [](TwoBlocks& net, const at::Tensor& x) {
                    return mean_of(RunAgain::apply(x.clone().set_requires_grad(true), &net));
                  },
              .before_update =
                  [&](Recording& recording, TwoBlocks&, const at::Tensor&) {
                    note_sums(recording, "held gradients", held);
                  }});
  }
}
