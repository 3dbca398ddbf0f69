#include <cmath>
#include <cstdint>
#include <sstream>

#include "tests/sdk/shard/loop_parts.h"

namespace cox::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using at::Tensor;

Tensor sum_by_pointer(const Tensor& tensor) {
  const auto* data = static_cast<const float*>(tensor.const_data_ptr());
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) sum += data[i];
  return torch::tensor(sum);
}

Tensors saved_and_loaded(LoopModel& model) {
  std::stringstream bytes;
  torch::serialize::OutputArchive saved;
  model.save(saved);
  saved.save_to(bytes);
  torch::serialize::InputArchive read;
  read.load_from(bytes);
  const auto other = make_loop_model("language");
  other->load(read);
  Tensors loaded;
  for (const Tensor& p : other->parameters()) loaded.push_back(p.detach().clone());
  return loaded;
}

}  // namespace

std::vector<ShardedLoop> loops_that_evaluate() {
  const auto evaluate = [](LoopState at) {
    const at::NoGradGuard no_grad;
    at.seen.push_back(at.model.outputs(100 + at.step, at.rank));
  };
  std::vector<ShardedLoop> loops;
  for (const char* model : {"language", "recurrent", "pictures"}) {
    loops.push_back(after(std::string("evaluation after the update, ") + model, evaluate));
    loops.back().model = model;
  }
  loops.push_back(before("evaluation before the update", evaluate));
  loops.push_back(after("evaluation on one rank", [evaluate](LoopState at) {
    if (at.rank == 0) evaluate(at);
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_read_parameters() {
  const auto norms = [](LoopState at) {
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(p.norm().detach());
  };
  const auto squares = [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(p.pow(2).sum());
  };
  std::vector<ShardedLoop> loops;
  loops.push_back(before("norms of parameters before the update", norms));
  loops.push_back(after("norms of parameters after the update", norms));
  loops.push_back(before("squares of parameters before the update", squares));
  loops.push_back(after("squares of parameters after the update", squares));
  loops.push_back(after("sizes read by the host", [](LoopState at) {
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(torch::tensor(p.sizes().vec()));
  }));
  loops.push_back(after("parameters read by pointer", [](LoopState at) {
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(sum_by_pointer(p));
  }));
  loops.push_back(after("torch::save of the model, loaded elsewhere", [](LoopState at) {
    for (const Tensor& p : saved_and_loaded(at.model)) at.seen.push_back(p);
  }));
  loops.push_back(after("parameters_to_vector", [](LoopState at) {
    at.seen.push_back(nn::utils::parameters_to_vector(at.model.parameters()).detach());
  }));
  loops.push_back(after("versions of parameters", [](LoopState at) {
    for (const Tensor& p : at.model.parameters())
      at.seen.push_back(torch::tensor(static_cast<std::int64_t>(p._version())));
  }));
  loops.back().optimizer = "adamw";
  loops.push_back(after("versions of parameters, momentum", loops.back().after_update));
  loops.back().optimizer = "momentum";
  loops.push_back(after("versions of parameters after a write to a part", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (Tensor p : at.model.parameters()) {
      p.select(0, 0).mul_(0.9);
      at.seen.push_back(torch::tensor(static_cast<std::int64_t>(p._version())));
    }
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_read_gradients() {
  std::vector<ShardedLoop> loops;
  loops.push_back(before("norms of gradients", [](LoopState at) {
    for_each_gradient(at.model, [&](Tensor p) { at.seen.push_back(p.grad().norm().detach()); });
  }));
  loops.push_back(before("squares of gradients", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for_each_gradient(at.model, [&](Tensor p) { at.seen.push_back(p.grad().pow(2).sum()); });
  }));
  loops.push_back(before("gradients cloned and read by pointer", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for_each_gradient(at.model,
                      [&](Tensor p) { at.seen.push_back(sum_by_pointer(p.grad().clone())); });
  }));
  loops.push_back(before("the change of gradients", [last = kept()](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensors now;
    for_each_gradient(at.model, [&](Tensor p) { now.push_back(p.grad().clone()); });
    Tensors& earlier = tensors_of(last, at);
    for (std::size_t i = 0; i < earlier.size(); ++i)
      at.seen.push_back((now[i] - earlier[i]).norm());
    earlier = now;
  }));
  loops.push_back(before("gradients kept from the step before", [last = kept()](LoopState at) {
    Tensors& earlier = tensors_of(last, at);
    for (const Tensor& each : earlier) at.seen.push_back(each.detach().clone());
    earlier.clear();
    for_each_gradient(at.model, [&](Tensor p) { earlier.push_back(p.grad()); });
  }));
  loops.back().steps = 8;
  loops.push_back(before("views of gradients kept from the step before", [last = kept()](
                                                                             LoopState at) {
    Tensors& earlier = tensors_of(last, at);
    for (const Tensor& each : earlier) at.seen.push_back(each.clone());
    earlier.clear();
    for_each_gradient(at.model, [&](Tensor p) { earlier.push_back(p.grad().detach().flatten()); });
  }));
  loops.back().steps = 8;
  loops.push_back(before("gradients joined to one vector", [](LoopState at) {
    Tensors flat;
    for_each_gradient(at.model, [&](Tensor p) { flat.push_back(p.grad().detach().flatten()); });
    at.seen.push_back(torch::cat(flat).norm());
  }));
  loops.push_back(before("a look for what is not finite", [](LoopState at) {
    for_each_gradient(at.model,
                      [&](Tensor p) { at.seen.push_back(torch::isfinite(p.grad()).all()); });
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_keep_averages() {
  std::vector<ShardedLoop> loops;
  loops.push_back(after("an average of weights by lerp_", [averages = kept()](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensors& own = tensors_of(averages, at);
    std::size_t i = 0;
    for (const Tensor& p : at.model.parameters()) {
      if (i == own.size()) own.push_back(p.detach().clone());
      own[i].lerp_(p, 0.1);
      at.seen.push_back(own[i++].clone());
    }
  }));
  loops.push_back(after("an average of weights by data()", [averages = kept()](LoopState at) {
    Tensors& own = tensors_of(averages, at);
    std::size_t i = 0;
    for (const Tensor& p : at.model.parameters()) {
      if (i == own.size()) own.push_back(torch::zeros_like(p).detach());
      own[i].mul_(0.9).add_(p.data(), 0.1);
      at.seen.push_back(own[i++].clone());
    }
  }));
  for (const bool with_gradients : {true, false}) {
    loops.push_back(before(
        std::string("a sum of gradients of its own, gradients ") + (with_gradients ? "on" : "off"),
        [sums = kept(), with_gradients](LoopState at) {
          const at::AutoGradMode mode(with_gradients);
          Tensors& own = tensors_of(sums, at);
          std::size_t i = 0;
          for_each_gradient(at.model, [&](Tensor p) {
            if (i == own.size()) own.push_back(torch::zeros_like(p).detach());
            own[i].add_(p.grad().detach());
            at.seen.push_back(torch::tensor(own[i].numel()));
            at.seen.push_back(own[i++].norm());
          });
        }));
  }
  loops.push_back(after("norms of the optimizer's state", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (const Tensor& p : at.model.parameters()) {
      const auto found = at.optimizer.state().find(p.unsafeGetTensorImpl());
      if (found == at.optimizer.state().end()) continue;
      at.seen.push_back(static_cast<optim::AdamParamState&>(*found->second).exp_avg_sq().norm());
    }
  }));
  return loops;
}

}  // namespace cox::test
