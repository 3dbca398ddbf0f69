#include <cmath>
#include <cstddef>
#include <memory>
#include <sstream>
#include <string>

#include "tests/sdk/shard/loop_parts.h"

namespace cox::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using at::Tensor;

std::string bytes_of(const LoopModel& model) {
  std::ostringstream bytes;
  torch::serialize::OutputArchive archive;
  model.save(archive);
  archive.save_to(bytes);
  return bytes.str();
}

void load(const std::string& bytes, LoopModel& model) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  model.load(archive);
}

}  // namespace

std::vector<ShardedLoop> loops_that_clip() {
  std::vector<ShardedLoop> loops;
  const auto clipped = [](double most, double norm, bool with_gradients) {
    return [=](LoopState at) {
      const at::AutoGradMode mode(with_gradients);
      at.seen.push_back(
          torch::tensor(nn::utils::clip_grad_norm_(at.model.parameters(), most, norm)));
    };
  };
  loops.push_back(before("clip_grad_norm_", clipped(0.1, 2, true)));
  loops.push_back(before("clip_grad_norm_, sgd", clipped(0.1, 2, true)));
  loops.back().optimizer = "sgd";
  loops.push_back(before("clip_grad_norm_ with gradients off", clipped(0.1, 2, false)));
  loops.push_back(before("clip_grad_norm_ by the largest", clipped(0.1, INFINITY, true)));
  loops.push_back(
      before("clip_grad_norm_ by the largest, gradients off", clipped(0.1, INFINITY, false)));
  loops.push_back(before("clip_grad_value_", [](LoopState at) {
    nn::utils::clip_grad_value_(at.model.parameters(), 0.001);
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_write_to_parameters() {
  std::vector<ShardedLoop> loops;
  loops.push_back(after("clamp_ of parameters", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor& p : at.model.parameters()) p.clamp_(-0.05, 0.05);
  }));
  loops.push_back(after("data().mul_", [](LoopState at) {
    for (Tensor& p : at.model.parameters()) p.data().mul_(0.99);
  }));
  loops.push_back(after("noise on parameters", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor& p : at.model.parameters()) p.add_(torch::randn_like(p), 0.001);
  }));
  loops.push_back(after("weights made anew", [](LoopState at) {
    if (at.step != 1) return;
    for (Tensor& p : at.model.parameters()) {
      if (p.dim() > 1) nn::init::xavier_uniform_(p);
    }
  }));
  loops.push_back(after("a write through a view", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor& p : at.model.parameters()) {
      if (p.dim() == 2) p[0].zero_();
    }
  }));
  loops.push_back(after("writes to parts", [](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensor p = at.model.parameters()[0];
    p.index_put_({torch::tensor({1, 5})}, torch::zeros({p.size(1)}));
    p.slice(0, 3, 4).copy_(torch::ones({1, p.size(1)}));
    p.view(-1)[7] = 2;
    p.t()[3].mul_(2);
  }));
  loops.push_back(after("copy_ of another model", [](LoopState at) {
    if (at.step != 1) return;
    const at::NoGradGuard no_grad;
    const auto other = make_loop_model("language");
    for (std::size_t i = 0; i < other->parameters().size(); ++i)
      at.model.parameters()[i].copy_(other->parameters()[i]);
  }));
  loops.push_back(after("a row added to a matrix", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor& p : at.model.parameters()) {
      if (p.dim() == 2) p.mul_(torch::linspace(0.9, 1.1, p.size(1)));
    }
  }));
  loops.push_back(after("a matrix and its transposed", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor& p : at.model.parameters()) {
      if (p.dim() == 2 && p.size(0) == p.size(1)) p.add_(p.t().clone(), 0.1);
    }
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_replace_parameters() {
  std::vector<ShardedLoop> loops;
  loops.push_back(
      after("a load into the model", [saved = std::make_shared<std::string>()](LoopState at) {
        if (at.step == 0) *saved = bytes_of(at.model);
        if (at.step == 2) load(*saved, at.model);
      }));
  loops.push_back(
      before("a load before the update", [saved = std::make_shared<std::string>()](LoopState at) {
        if (at.step == 0) *saved = bytes_of(at.model);
        if (at.step == 2) load(*saved, at.model);
      }));
  loops.push_back(after("set_data with other values", [](LoopState at) {
    if (at.step == 1) {
      for (Tensor& p : at.model.parameters()) p.set_data(p.detach() * 0.5);
    }
  }));
  loops.push_back(
      after("an evaluation with averages by set_data", [averages = kept()](LoopState at) {
        const at::NoGradGuard no_grad;
        Tensors& own = tensors_of(averages, at);
        Tensors trained;
        std::size_t i = 0;
        for (Tensor& p : at.model.parameters()) {
          if (i == own.size()) own.push_back(p.detach().clone());
          own[i].mul_(0.9).add_(p, 0.1);
          trained.push_back(p.data());
          p.set_data(own[i++]);
        }
        at.seen.push_back(at.model.outputs(100 + at.step, 0));
        i = 0;
        for (Tensor& p : at.model.parameters()) p.set_data(trained[i++]);
      }));
  for (ShardedLoop& loop : loops) loop.steps = 6;
  return loops;
}

std::vector<ShardedLoop> loops_that_write_to_gradients() {
  std::vector<ShardedLoop> loops;
  loops.push_back(before("gradients halved by assignment", [](LoopState at) {
    for_each_gradient(at.model, [](Tensor p) { p.mutable_grad() = p.grad() * 0.5; });
  }));
  loops.push_back(before("gradients halved in place", [](LoopState at) {
    for_each_gradient(at.model, [](Tensor p) { p.grad().mul_(0.5); });
  }));
  loops.push_back(before("gradients divided by their mean", [](LoopState at) {
    for_each_gradient(at.model, [](Tensor p) { p.grad().div_(p.grad().abs().mean() + 1); });
  }));
  loops.push_back(before("a row of gradients zeroed", [](LoopState at) {
    for_each_gradient(at.model, [](Tensor p) {
      if (p.dim() == 2) p.grad()[0].zero_();
    });
  }));
  loops.push_back(before("gradients unscaled", [](LoopState at) {
    Tensors gradients;
    for_each_gradient(at.model, [&](Tensor p) { gradients.push_back(p.grad()); });
    Tensor found = torch::zeros({}), scale = torch::full({}, 0.5f);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, scale);
    at.seen.push_back(found);
  }));
  loops.push_back(after("a target network", [targets = kept()](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensors& own = tensors_of(targets, at);
    std::size_t i = 0;
    for (const Tensor& p : at.model.parameters()) {
      if (i == own.size()) own.push_back(torch::zeros_like(p));
      own[i].mul_(0.9).add_(p, 0.1);
      at.seen.push_back(own[i++].clone());
    }
  }));
  loops.push_back(with({"an update with gradients on", "language", "sgd"}, [](auto& loop) {
    loop.update = [](LoopState at) {
      const at::AutoGradMode mode(true);
      at.optimizer.step();
    };
  }));
  loops.push_back(after("the state replaced by whole tensors", [](LoopState at) {
    if (at.step != 1) return;
    for (const Tensor& p : at.model.parameters()) {
      auto& state =
          static_cast<optim::AdamParamState&>(*at.optimizer.state().at(p.unsafeGetTensorImpl()));
      state.exp_avg(torch::full(p.sizes(), 0.01f));
      state.exp_avg_sq(torch::full(p.sizes(), 0.02f));
    }
  }));
  return loops;
}

std::vector<ShardedLoop> loops_with_other_losses() {
  std::vector<ShardedLoop> loops;
  loops.push_back(
      losing("a penalty on gradients", "pictures", [](LoopModel& model, int step, int rank) {
        Tensor loss = model.loss(step, rank);
        Tensors wanted;
        for (const Tensor& p : model.parameters()) {
          if (p.requires_grad()) wanted.push_back(p);
        }
        for (const Tensor& g : torch::autograd::grad({loss}, wanted, {}, true, true, true)) {
          if (g.defined()) loss = loss + 0.01 * g.pow(2).sum();
        }
        return loss;
      }));
  loops.push_back(losing("squares of weights in the loss", "language",
                         [](LoopModel& model, int step, int rank) {
                           Tensor loss = model.loss(step, rank);
                           for (const Tensor& p : model.parameters())
                             loss = loss + 1e-3 * p.pow(2).sum();
                           return loss;
                         }));
  loops.push_back(
      losing("parameters frozen and freed", "pictures", [](LoopModel& model, int step, int rank) {
        for (auto& p : model.named_parameters()) {
          if (step == 2 && p.key() == "frozen") p.value().requires_grad_(true);
          if (step == 3 && p.key() == "head.weight") p.value().requires_grad_(false);
        }
        return model.loss(step, rank);
      }));
  return loops;
}

std::vector<ShardedLoop> loops_with_inner_backward() {
  std::vector<ShardedLoop> loops;
  loops.push_back(losing("a backward pass inside another", "language",
                         [](LoopModel& model, int step, int rank) {
                           const Tensor weight = model.parameters()[3];
                           Tensor once = weight * 1;
                           once.register_hook([weight](const Tensor& gradient) {
                             const at::AutoGradMode mode(true);
                             (0.1 * weight.pow(2).sum()).backward();
                             return gradient;
                           });
                           return model.loss(step, rank) + once.pow(2).mean();
                         }));
  loops.back().steps = 8;
  return loops;
}

std::vector<ShardedLoop> loops_with_odd_backward() {
  std::vector<ShardedLoop> loops;
  loops.push_back(losing("graphs of all steps kept", "language",
                         [graphs = kept()](LoopModel& model, int step, int rank) {
                           const Tensor loss = model.loss(step, rank);
                           (*graphs)[&model].push_back(loss);
                           return loss;
                         }));
  loops.push_back(losing("weight norm", "language", [](LoopModel& model, int step, int rank) {
    const Tensor v = model.parameters()[3];
    const Tensor normed = torch::_weight_norm(v, torch::ones({v.size(0), 1}), 0);
    return model.loss(step, rank) + 0.1 * normed.pow(2).mean();
  }));
  for (const bool by_data : {false, true}) {
    loops.push_back(losing(
        std::string("weights divided by their norm in forward") + (by_data ? ", by data()" : ""),
        "language", [by_data](LoopModel& model, int step, int rank) {
          Tensor v = model.parameters()[3];
          if (by_data) {
            v.data().div_(v.data().norm());
          } else {
            const at::NoGradGuard no_grad;
            v.div_(v.norm());
          }
          return model.loss(step, rank);
        }));
  }
  loops.push_back(losing(
      "a hook that doubles a gradient", "language", [](LoopModel& model, int step, int rank) {
        if (step == 0) model.parameters()[3].register_hook([](const Tensor& g) { return g * 2; });
        return model.loss(step, rank);
      }));
  loops.push_back(losing("sizes read by the host in forward", "language",
                         [](LoopModel& model, int step, int rank) {
                           TORCH_CHECK(model.parameters()[0].size(0) == 53);
                           return model.loss(step, rank);
                         }));
  loops.push_back(
      losing("a history of gradients once", "pictures", [](LoopModel& model, int step, int rank) {
        if (step == 1) model.loss(step, rank).backward({}, true, true);
        return model.loss(step, rank);
      }));
  loops.push_back(with({"closures of LBFGS", "language", "lbfgs"}, [](auto& loop) {
    loop.passes = 0;
    loop.steps = 2;
    loop.update = [](LoopState at) {
      const at::AutoGradMode mode(true);
      at.optimizer.step([&] {
        at.optimizer.zero_grad();
        const Tensor loss = at.model.loss(at.step, 0);
        loss.backward();
        return loss;
      });
    };
  }));
  return loops;
}

}  // namespace cox::test
