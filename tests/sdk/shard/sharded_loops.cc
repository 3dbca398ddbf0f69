#include "tests/sdk/shard/sharded_loops.h"

#include <cmath>
#include <map>
#include <sstream>
#include <utility>

namespace cox::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor numbers(int step, int rank, std::vector<std::int64_t> shape) {
  return batch_of_step(1000 * rank + step, shape);
}
Tensor words(int step, int rank, std::vector<std::int64_t> shape, std::int64_t most) {
  return (numbers(step, rank, std::move(shape)).abs() * 1000).to(at::kLong).remainder(most);
}

// A small language model: the output has the embedding's weights.
struct Language : LoopModel {
  static constexpr std::int64_t kWords = 53, kLength = 8, kWidth = 24;

  nn::Embedding embedding = register_module("embedding", nn::Embedding(kWords, kWidth));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear inner = register_module("inner", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear outer = register_module("outer", nn::Linear(4 * kWidth, kWidth));
  nn::Linear mix = register_module("mix", nn::Linear(kLength, kLength));

  Tensor outputs(int step, int rank) override {
    Tensor x = embedding(words(step, rank, {3, kLength}, kWords));
    x = x + mix(x.transpose(1, 2)).transpose(1, 2);
    x = x + outer(torch::gelu(inner(norm(x))));
    return torch::linear(x, embedding->weight);
  }
  Tensor loss(int step, int rank) override {
    return torch::cross_entropy_loss(outputs(step, rank).view({-1, kWords}),
                                     words(step + 1, rank, {3 * kLength}, kWords));
  }
};

struct Recurrent : LoopModel {
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(10, 17).num_layers(2)));
  nn::Linear head = register_module("head", nn::Linear(17, 5));

  Tensor outputs(int step, int rank) override {
    return head(std::get<0>(lstm(numbers(step, rank, {6, 3, 10}))));
  }
  Tensor loss(int step, int rank) override {
    return torch::cross_entropy_loss(outputs(step, rank).view({-1, 5}), words(step, rank, {18}, 5));
  }
};

// Batch statistics, a scalar, a parameter that is never used, and one that is frozen.
struct Pictures : LoopModel {
  explicit Pictures(bool channels_last) : is_channels_last(channels_last) {
    if (!channels_last) return;
    for (Tensor weight : {first->weight, second->weight})
      weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  }

  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 13, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(13));
  nn::Conv2d second = register_module("second", nn::Conv2d(nn::Conv2dOptions(13, 17, 3).stride(2)));
  nn::Linear head = register_module("head", nn::Linear(17, 5));
  Tensor temperature = register_parameter("temperature", torch::tensor(1.5f));
  Tensor unused = register_parameter("unused", torch::ones({13, 7}));
  Tensor frozen = register_parameter("frozen", torch::full({9, 11}, 0.5), false);
  bool is_channels_last;

  Tensor outputs(int step, int rank) override {
    Tensor x = numbers(step, rank, {4, 3, 8, 8});
    if (is_channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    x = torch::relu(second(torch::relu(norm(first(x)))));
    return head(x.mean({2, 3})) * temperature * (1 + frozen.mean());
  }
  Tensor loss(int step, int rank) override {
    return torch::cross_entropy_loss(outputs(step, rank), words(step, rank, {4}, 5));
  }
};

std::shared_ptr<LoopModel> make_model(const std::string& name) {
  torch::manual_seed(42);
  if (name == "language") return std::make_shared<Language>();
  if (name == "recurrent") return std::make_shared<Recurrent>();
  return std::make_shared<Pictures>(name == "pictures, channels last");
}

std::shared_ptr<optim::Optimizer> make_optimizer(const std::string& name, LoopModel& model) {
  const Tensors p = model.parameters();
  using optim::AdamOptions, optim::SGDOptions;
  if (name == "sgd") return std::make_shared<optim::SGD>(p, SGDOptions(0.05));
  if (name == "momentum")
    return std::make_shared<optim::SGD>(p, SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  if (name == "nesterov")
    return std::make_shared<optim::SGD>(p, SGDOptions(0.05).momentum(0.9).nesterov(true));
  if (name == "amsgrad") return std::make_shared<optim::Adam>(p, AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_shared<optim::AdamW>(p, optim::AdamWOptions(0.01));
  if (name == "rmsprop")
    return std::make_shared<optim::RMSprop>(
        p, optim::RMSpropOptions(0.003).momentum(0.5).centered(true));
  if (name == "adagrad") return std::make_shared<optim::Adagrad>(p, optim::AdagradOptions(0.05));
  if (name == "lbfgs")
    return std::make_shared<optim::LBFGS>(p, optim::LBFGSOptions(0.1).max_iter(3));
  return std::make_shared<optim::Adam>(p, AdamOptions(0.01).weight_decay(0.01));
}

// An optimizer of a program's own: `update(parameter, gradient, state)` for each parameter that has
// a gradient.
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

// An optimizer of a program's own that updates all parameters in one call.
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

ShardedLoop with(ShardedLoop loop, std::function<void(ShardedLoop&)> change) {
  change(loop);
  return loop;
}
ShardedLoop before(const std::string& name, std::function<void(LoopState)> run) {
  return with({name}, [&](ShardedLoop& loop) { loop.before_update = std::move(run); });
}
ShardedLoop after(const std::string& name, std::function<void(LoopState)> run) {
  return with({name}, [&](ShardedLoop& loop) { loop.after_update = std::move(run); });
}
ShardedLoop losing(const std::string& name, const std::string& model,
                   std::function<Tensor(LoopModel&, int, int)> loss) {
  return with({name, model}, [&](ShardedLoop& loop) { loop.loss = std::move(loss); });
}

// Calls `use` with each parameter that has a gradient.
void for_each_gradient(LoopModel& model, const std::function<void(Tensor)>& use) {
  for (Tensor& p : model.parameters()) {
    if (p.grad().defined()) use(p);
  }
}

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
  const auto other = make_model("language");
  other->load(read);
  Tensors loaded;
  for (const Tensor& p : other->parameters()) loaded.push_back(p.detach().clone());
  return loaded;
}

// Tensors that a loop keeps from step to step, of each model its own.
using Kept = std::shared_ptr<std::map<const LoopModel*, Tensors>>;
Kept kept() {
  return std::make_shared<std::map<const LoopModel*, Tensors>>();
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

std::vector<ShardedLoop> optimizers_and_models() {
  std::vector<ShardedLoop> loops;
  for (const char* model : {"language", "recurrent", "pictures", "pictures, channels last"}) {
    for (const char* optimizer :
         {"sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "rmsprop", "adagrad"})
      loops.push_back({std::string(optimizer) + " of " + model, model, optimizer});
  }
  loops.push_back(with({"three passes an update"}, [](auto& loop) { loop.passes = 3; }));
  loops.push_back(with({"three passes an update, gradients zeroed"}, [](auto& loop) {
    loop.passes = 3;
    loop.drops_gradients = false;
    loop.optimizer = "momentum";
  }));
  for (const char* optimizer : {"adam", "momentum"}) {
    loops.push_back(with({std::string("gradients zeroed, ") + optimizer, "pictures", optimizer},
                         [](auto& loop) { loop.drops_gradients = false; }));
  }
  for (const char* optimizer : {"adam", "adagrad"}) {
    loops.push_back(
        with({std::string("optimizer made before adopt, ") + optimizer, "language", optimizer},
             [](auto& loop) { loop.optimizer_first = true; }));
  }
  ShardedLoop groups = after("groups with rates that fall", [](LoopState at) {
    for (auto& group : at.optimizer.param_groups())
      group.options().set_lr(group.options().get_lr() * 0.9);
  });
  groups.make_optimizer = [](LoopModel& model) {
    Tensors matrices, vectors;
    for (const Tensor& p : model.parameters()) (p.dim() > 1 ? matrices : vectors).push_back(p);
    std::vector<optim::OptimizerParamGroup> both;
    both.emplace_back(matrices, std::make_unique<optim::AdamWOptions>(
                                    optim::AdamWOptions(0.01).weight_decay(0.1)));
    both.emplace_back(
        vectors, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(0.02).weight_decay(0)));
    return std::make_shared<optim::AdamW>(both, optim::AdamWOptions(0.01));
  };
  loops.push_back(groups);
  loops.push_back(with({"an optimizer of half of the parameters"}, [](auto& loop) {
    loop.make_optimizer = [](LoopModel& model) {
      Tensors half;
      for (const Tensor& p : model.parameters()) {
        if (p.dim() > 1) half.push_back(p);
      }
      return std::make_shared<optim::Adam>(half, optim::AdamOptions(0.01));
    };
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_read() {
  const auto evaluate = [](LoopState at) {
    const at::NoGradGuard no_grad;
    at.seen.push_back(at.model.outputs(100 + at.step, at.rank));
  };
  const auto norms = [](LoopState at) {
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(p.norm().detach());
  };
  const auto squares = [](LoopState at) {
    const at::NoGradGuard no_grad;
    for (const Tensor& p : at.model.parameters()) at.seen.push_back(p.pow(2).sum());
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
  loops.push_back(before("norms of parameters before the update", norms));
  loops.push_back(after("norms of parameters after the update", norms));
  loops.push_back(before("squares of parameters before the update", squares));
  loops.push_back(after("squares of parameters after the update", squares));
  loops.push_back(before("norms of gradients", [](LoopState at) {
    for_each_gradient(at.model, [&](Tensor p) { at.seen.push_back(p.grad().norm().detach()); });
  }));
  loops.push_back(before("squares of gradients", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for_each_gradient(at.model, [&](Tensor p) { at.seen.push_back(p.grad().pow(2).sum()); });
  }));
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
  loops.push_back(before("gradients cloned and read by pointer", [](LoopState at) {
    const at::NoGradGuard no_grad;
    for_each_gradient(at.model,
                      [&](Tensor p) { at.seen.push_back(sum_by_pointer(p.grad().clone())); });
  }));
  loops.push_back(before("the change of gradients", [last = kept()](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensors now;
    for_each_gradient(at.model, [&](Tensor p) { now.push_back(p.grad().clone()); });
    Tensors& earlier = (*last)[&at.model];
    for (std::size_t i = 0; i < earlier.size(); ++i)
      at.seen.push_back((now[i] - earlier[i]).norm());
    earlier = now;
  }));
  for (const bool with_gradients : {true, false}) {
    loops.push_back(before(
        std::string("a sum of gradients of its own, gradients ") + (with_gradients ? "on" : "off"),
        [sums = kept(), with_gradients](LoopState at) {
          const at::AutoGradMode mode(with_gradients);
          Tensors& own = (*sums)[&at.model];
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
  loops.push_back(before("gradients joined to one vector", [](LoopState at) {
    Tensors flat;
    for_each_gradient(at.model, [&](Tensor p) { flat.push_back(p.grad().detach().flatten()); });
    at.seen.push_back(torch::cat(flat).norm());
  }));
  loops.push_back(before("a look for what is not finite", [](LoopState at) {
    for_each_gradient(at.model,
                      [&](Tensor p) { at.seen.push_back(torch::isfinite(p.grad()).all()); });
  }));
  loops.push_back(after("an average of weights by lerp_", [averages = kept()](LoopState at) {
    const at::NoGradGuard no_grad;
    Tensors& own = (*averages)[&at.model];
    std::size_t i = 0;
    for (const Tensor& p : at.model.parameters()) {
      if (i == own.size()) own.push_back(p.detach().clone());
      own[i].lerp_(p, 0.1);
      at.seen.push_back(own[i++].clone());
    }
  }));
  loops.push_back(after("an average of weights by data()", [averages = kept()](LoopState at) {
    Tensors& own = (*averages)[&at.model];
    std::size_t i = 0;
    for (const Tensor& p : at.model.parameters()) {
      if (i == own.size()) own.push_back(torch::zeros_like(p).detach());
      own[i].mul_(0.9).add_(p.data(), 0.1);
      at.seen.push_back(own[i++].clone());
    }
  }));
  return loops;
}

std::vector<ShardedLoop> loops_that_write() {
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
    const auto other = make_model("language");
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
    Tensors& own = (*targets)[&at.model];
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

std::vector<ShardedLoop> loops_with_own_optimizers() {
  std::vector<ShardedLoop> loops;
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

std::vector<ShardedLoop> loops_with_odd_backward() {
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

std::vector<Tensor> trained(const ShardedLoop& loop, const Adopt& adopt, int rank) {
  const auto model = make_model(loop.model);
  const auto make = [&] {
    return loop.make_optimizer ? loop.make_optimizer(*model)
                               : make_optimizer(loop.optimizer, *model);
  };
  std::shared_ptr<optim::Optimizer> optimizer = loop.optimizer_first ? make() : nullptr;
  adopt(*model);
  if (optimizer == nullptr) optimizer = make();
  torch::manual_seed(7);
  LoopTrace trace;
  Tensors seen;
  for (int step = 0; step < loop.steps; ++step) {
    const LoopState at{*model, *optimizer, step, rank, seen};
    optimizer->zero_grad(loop.drops_gradients);
    for (int pass = 0; pass < loop.passes; ++pass) {
      const int batch = step * loop.passes + pass;
      (loop.loss ? loop.loss(*model, batch, rank) : model->loss(batch, rank)).backward();
    }
    if (loop.before_update) loop.before_update(at);
    if (loop.update) {
      loop.update(at);
    } else {
      optimizer->step();
    }
    if (loop.after_update) loop.after_update(at);
    trace.note(*model);
  }
  Tensors all = trace.tensors();
  for (const Tensor& each : seen) all.push_back(each.detach().clone());
  return all;
}

}  // namespace cox::test
