#include "tests/sdk/shard/sharded_loops.h"

#include <utility>

#include "tests/sdk/shard/loop_parts.h"

namespace cox::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using at::Tensor;

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

// Has batch statistics, a scalar, an unused parameter, and a frozen one.
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

}  // namespace

std::shared_ptr<LoopModel> make_loop_model(const std::string& name) {
  torch::manual_seed(42);
  if (name == "language") return std::make_shared<Language>();
  if (name == "language, bf16") {
    auto model = std::make_shared<Language>();
    model->to(at::kBFloat16);
    return model;
  }
  if (name == "recurrent") return std::make_shared<Recurrent>();
  return std::make_shared<Pictures>(name == "pictures, channels last");
}

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

std::vector<Tensor> trained(const ShardedLoop& loop, const Adopt& adopt, int rank) {
  const auto model = make_loop_model(loop.model);
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
