#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "coxswain/adamw.h"
#include "tests/sdk/shard/loop_parts.h"

namespace cox::test {
namespace {

namespace optim = torch::optim;
using at::Tensor;

// A program's own optimizer: `update(parameter, gradient, state)` for each parameter with a
// gradient.
class OwnOptimizer : public optim::Optimizer {
 public:
  using Update = std::function<void(Tensor parameter, const Tensor& gradient, Tensors& state)>;
  OwnOptimizer(LoopModel& model, Update update)
      : Optimizer({optim::OptimizerParamGroup(model.parameters())},
                  std::make_unique<optim::SGDOptions>(0.1)),
        update_(std::move(update)) {}
  Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (const Tensor& p : param_groups_[0].params()) {
      if (p.grad().defined()) update_(p, p.grad(), state_of_[p.unsafeGetTensorImpl()]);
    }
    return {};
  }

 private:
  const Update update_;
  std::map<void*, Tensors> state_of_;
};

ShardedLoop own_optimizer(const std::string& name, OwnOptimizer::Update update) {
  ShardedLoop loop{"an optimizer of its own: " + name};
  loop.make_optimizer = [update](LoopModel& model) {
    return std::make_shared<OwnOptimizer>(model, update);
  };
  return loop;
}

// A program's own optimizer that updates all parameters in one call.
class ListOptimizer : public optim::Optimizer {
 public:
  using Update = std::function<void(Tensors parameters, Tensors gradients, std::vector<Tensors>&)>;
  ListOptimizer(LoopModel& model, Update update)
      : Optimizer({optim::OptimizerParamGroup(model.parameters())},
                  std::make_unique<optim::SGDOptions>(0.1)),
        update_(std::move(update)) {}
  Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    Tensors parameters, gradients;
    for (const Tensor& p : param_groups_[0].params()) {
      if (!p.grad().defined()) continue;
      parameters.push_back(p);
      gradients.push_back(p.grad());
    }
    update_(parameters, gradients, states_);
    return {};
  }

 private:
  const Update update_;
  std::vector<Tensors> states_;
};

ShardedLoop list_optimizer(const std::string& name, ListOptimizer::Update update) {
  ShardedLoop loop{"an optimizer of its own on lists: " + name};
  loop.make_optimizer = [update](LoopModel& model) {
    return std::make_shared<ListOptimizer>(model, update);
  };
  return loop;
}

void orthogonalized(Tensor parameter, const Tensor& update) {
  if (parameter.dim() != 2) {
    parameter.sub_(update * 0.01);
    return;
  }
  Tensor x = update / (update.norm() + 1e-7);
  x = 1.5 * x - 0.5 * x.mm(x.t()).mm(x);
  parameter.sub_(x * 0.01);
}

}  // namespace

std::vector<ShardedLoop> loops_with_own_optimizers() {
  std::vector<ShardedLoop> loops;
  for (const char* model : {"language", "pictures"}) {
    ShardedLoop loop{std::string("cox::AdamW of ") + model, model};
    using Optimizers = std::map<const LoopModel*, std::unique_ptr<AdamW>>;
    loop.update = [own = std::make_shared<Optimizers>()](LoopState at) {
      std::unique_ptr<AdamW>& optimizer = (*own)[&at.model];
      if (!optimizer || at.step == 0)
        optimizer = std::make_unique<AdamW>(at.model.parameters(), AdamWOptions{.lr = 0.01});
      optimizer->step();
    };
    loop.steps = 8;
    loops.push_back(std::move(loop));
  }
  loops.push_back(own_optimizer("lamb", [](Tensor p, const Tensor& g, Tensors& state) {
    if (state.empty()) state = {torch::zeros_like(p), torch::zeros_like(p)};
    state[0].mul_(0.9).add_(g, 0.1);
    state[1].mul_(0.99).addcmul_(g, g, 0.01);
    const Tensor update = state[0] / (state[1].sqrt() + 1e-6);
    p.sub_(update * (p.norm() / (update.norm() + 1e-6)) * 0.01);
  }));
  loops.push_back(own_optimizer("lars", [](Tensor p, const Tensor& g, Tensors&) {
    p.sub_(g * (p.norm() / (g.norm() + 1e-6)) * 0.01);
  }));
  loops.push_back(own_optimizer("adafactor", [](Tensor p, const Tensor& g, Tensors& state) {
    Tensor squares = g.pow(2) + 1e-30;
    if (p.dim() >= 2) squares = squares.mean(-1, true);
    if (state.empty()) state = {torch::zeros_like(squares)};
    state[0].mul_(0.9).add_(squares, 0.1);
    p.sub_(g / state[0].sqrt() * 0.001);
  }));
  loops.push_back(
      own_optimizer("muon", [](Tensor p, const Tensor& g, Tensors&) { orthogonalized(p, g); }));
  loops.push_back(
      own_optimizer("muon with momentum", [](Tensor p, const Tensor& g, Tensors& state) {
        if (state.empty()) state = {torch::zeros_like(g)};
        state[0].mul_(0.9).add_(g);
        orthogonalized(p, g.add(state[0], 0.9));
      }));
  loops.push_back(
      own_optimizer("sign of the momentum", [](Tensor p, const Tensor& g, Tensors& state) {
        if (state.empty()) state = {torch::zeros_like(p)};
        p.mul_(0.999).add_(state[0].lerp(g, 0.1).sign_(), -0.01);
        state[0].lerp_(g, 0.01);
      }));
  return loops;
}

std::vector<ShardedLoop> loops_with_optimizers_on_lists() {
  std::vector<ShardedLoop> loops;
  loops.push_back(list_optimizer(
      "_foreach_add_", [](Tensors p, Tensors g, auto&) { at::_foreach_add_(p, g, -0.05); }));
  loops.push_back(list_optimizer("_foreach with momentum", [](Tensors p, Tensors g, auto& states) {
    if (states.empty()) {
      states.resize(1);
      for (const Tensor& each : p) states[0].push_back(torch::zeros_like(each));
    }
    at::_foreach_mul_(states[0], 0.9);
    at::_foreach_add_(states[0], g);
    at::_foreach_add_(p, states[0], -0.05);
  }));
  loops.push_back(list_optimizer("_fused_adamw_", [](Tensors p, Tensors g, auto& states) {
    if (states.empty()) {
      states.resize(4);
      for (const Tensor& each : p) {
        states[0].push_back(torch::zeros_like(each));
        states[1].push_back(torch::zeros_like(each));
        states[3].push_back(torch::zeros({}));
      }
    }
    for (Tensor& step : states[3]) step.add_(1);
    at::_fused_adamw_(p, g, states[0], states[1], states[2], states[3], 1e-2, 0.9, 0.99, 0.01, 1e-8,
                      false, false);
  }));
  return loops;
}

}  // namespace cox::test
