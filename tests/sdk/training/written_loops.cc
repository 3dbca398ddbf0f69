#include "tests/sdk/training/written_loops.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "coxswain/loss_scaler.h"

namespace cox::test {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = 12;

nn::Sequential deep_net(int inputs = 4) {
  return nn::Sequential(nn::Linear(inputs, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(),
                        nn::Linear(8, 1));
}

struct ComplexNet : nn::Module {
  Tensor w = register_parameter("w", torch::randn({3, 3}, torch::kComplexFloat));
  Tensor scale = register_parameter("scale", torch::ones({3}, torch::kComplexDouble));
};

void complex_parameters(const Adopt& adopt, LoopTrace& trace) {
  ComplexNet net;
  adopt(net);
  torch::optim::SGD optimizer(net.parameters(), 0.05);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor x = trace.batch(step, {4, 3}, at::kComplexFloat);
    torch::abs(torch::mm(x, net.w).to(at::kComplexDouble) * net.scale).pow(2).mean().backward();
    optimizer.step();
    trace.note(net);
  }
}

void loaded_after_adopt(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential other = deep_net(), net = deep_net();
  std::stringstream saved;
  torch::save(other, saved);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  adopt(*net);
  for (int step = 0; step < kSteps; ++step) {
    if (step == 0 || step == 3) {
      nn::Sequential into = net;
      saved.clear();
      saved.seekg(0);
      torch::load(into, saved);
    }
    optimizer.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

enum class Update { by_data, by_set_data };

void updated_by_hand(Update update, const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    for (Tensor& p : net->parameters()) {
      if (update == Update::by_data) p.data().sub_(0.1 * p.grad());
      if (update == Update::by_set_data) p.set_data(p.detach() - 0.1 * p.grad());
    }
    trace.note(*net);
  }
}

// Types and layouts change while the loop runs.
void converted(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net(nn::Conv2d(3, 4, 3), nn::Tanh(), nn::Flatten(), nn::Linear(64, 1));
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    if (step == 2) net->to(at::kDouble);
    if (step == 4) {
      Tensor weight = net->parameters()[0];
      weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    for (Tensor& p : net->parameters()) p.mutable_grad().reset();
    const Tensor x = trace.batch(step, {4, 3, 6, 6}).to(net->parameters()[0].scalar_type());
    net->forward(x).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

void free_leaf(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  Tensor scale = torch::ones({1}).requires_grad_(true);
  adopt(*net);
  Tensors all = net->parameters();
  all.push_back(scale);
  torch::optim::SGD optimizer(all, 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor loss = (scale * net->forward(trace.batch(step, {8, 4}))).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();
    // All ranks have equal gradients of `scale`, which are not averaged.
    trace.note(*net, {scale, scale.grad()});
    optimizer.step();
  }
}

void batch_of_the_programs_memory(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<float> rows(4096 * 4);
  for (int step = 0; step < kSteps; ++step) {
    net->forward(torch::ones({4, 4}));  // an evaluation with gradients on
    const auto load = [&] {
      std::vector<float> raw(4096 * 4, 0.01f * static_cast<float>(step + 1));
      return torch::from_blob(raw.data(), {4096, 4}).clone();
    };
    std::fill(rows.begin(), rows.end(), static_cast<float>(step));
    const Tensor kept = torch::from_blob(rows.data(), {4096, 4});
    optimizer.zero_grad();
    (net->forward(load()) - net->forward(kept).detach()).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

void counted_hooks(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  Tensor scale = torch::ones({1}).requires_grad_(true);
  std::int64_t calls = 0;
  for (const Tensor& p : net->parameters()) p.register_hook([&calls](const Tensor&) { ++calls; });
  scale.register_hook([&calls](const Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    scale.mutable_grad().reset();
    (scale * net->forward(trace.batch(step, {8, 4}))).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net, {scale.grad(), at::full({1}, calls)});
  }
}

void penalty_on_gradients(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = trace.batch(step, {8, 4}).requires_grad_(true);
    const Tensor y = net->forward(x);
    const Tensor slope =
        torch::autograd::grad({y}, {x}, {torch::ones_like(y)}, std::nullopt, true)[0];
    optimizer.zero_grad();
    (y.pow(2).mean() + (slope.norm(2, 1) - 1).pow(2).mean()).backward();
    optimizer.step();
    trace.note(*net, {x.grad()});
  }
}

void differential_equation(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net(1);
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = trace.batch(step, {16, 1}).requires_grad_(true);
    const auto derivative = [&x](const Tensor& of) {
      return torch::autograd::grad({of}, {x}, {torch::ones_like(of)}, std::nullopt, true)[0];
    };
    const Tensor u = net->forward(x);
    const Tensor loss = (derivative(derivative(u)) + u).pow(2).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    trace.note(*net);
  }
}

void frozen_at_first(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const Tensors all = net->parameters();
    for (std::size_t p = 0; p < all.size(); ++p)
      all[p].set_requires_grad(step >= 2 || p + 2 >= all.size());
    optimizer.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

// The players of a GAN freeze each other in turn. The generator's pictures of a step are judged
// twice, so that a graph spans the discriminator's update.
void frozen_in_turn(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential generator = deep_net(), judge = deep_net(1);
  adopt(*generator);
  adopt(*judge);
  torch::optim::Adam of_generator(generator->parameters(), 0.01),
      of_judge(judge->parameters(), 0.01);
  const auto train_judge = [&](bool trains) {
    for (Tensor& p : judge->parameters()) p.requires_grad_(trains);
  };
  for (int step = 0; step < kSteps; ++step) {
    train_judge(true);
    of_judge.zero_grad();
    torch::softplus(-judge->forward(trace.batch(step, {8, 1}))).mean().backward();
    const Tensor made = generator->forward(trace.batch(step, {8, 4}));
    torch::softplus(judge->forward(made.detach())).mean().backward();
    of_judge.step();
    trace.note(*judge);
    train_judge(false);
    of_generator.zero_grad();
    torch::softplus(-judge->forward(made)).mean().backward();
    of_generator.step();
    trace.note(*generator);
  }
}

// Trained first; then adopted with a new head.
void finetuned(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD first(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    first.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    first.step();
    trace.note(*net);
  }
  nn::Linear head(1, 2);
  adopt(*head);
  Tensors all = net->parameters();
  for (const Tensor& p : head->parameters()) all.push_back(p);
  torch::optim::SGD second(all, 0.05);
  for (int step = 0; step < kSteps; ++step) {
    second.zero_grad();
    head->forward(net->forward(trace.batch(step, {8, 4}))).pow(2).mean().backward();
    second.step();
    trace.note(*net);
    trace.note(*head);
  }
}

// A scaled loss overflows in one step, which no optimizer step closes.
void scaled(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  LossScaler scaler({.initial_scale = 1024, .growth_interval = 2});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = net->forward(trace.batch(step, {8, 4})).pow(2).mean();
    scaler.scale(step == 3 ? loss * INFINITY : loss).backward();
    scaler.unscale(optimizer);
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    scaler.step(optimizer);
    scaler.update();
    trace.note(*net, {at::full({1}, scaler.value().scale)});
  }
}

// An operator registered by the program counts its calls.
void operator_of_its_own(const Adopt& adopt, LoopTrace& trace) {
  static std::int64_t calls = 0;
  static torch::Library library(torch::Library::DEF, "written", std::nullopt, __FILE__, __LINE__);
  static const auto shifted = [] {
    library.def("shifted(Tensor x) -> Tensor",
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                [](const Tensor& x) { return x.add(++calls); }));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("written::shifted", "")
        .typed<Tensor(const Tensor&)>();
  }();
  calls = 0;
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net->forward(shifted.call(trace.batch(step, {8, 4}))).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net, {at::full({1}, calls)});
  }
}

// A network fitted by LBFGS, which calls its closure several times a step.
void by_closures(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = trace.batch(step, {8, 4});
    optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor loss = net->forward(x).pow(2).mean();
      loss.backward();
      return loss;
    });
    trace.note(*net);
  }
}

// Evaluations in the middle of steps, some with gradients on, one with a kept result.
void evaluated(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  Tensor kept;
  for (int step = 0; step < kSteps; ++step) {
    for (int pass = 0; pass < step % 3; ++pass) kept = net->forward(trace.batch(50 + pass, {8, 4}));
    if (step % 4 == 1) {
      const at::NoGradGuard no_grad;
      net->eval();
      kept = net->forward(trace.batch(60, {16, 4}));
      net->train();
    }
    optimizer.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

struct Reader : nn::Module {
  nn::Embedding embed{register_module("embed", nn::Embedding(16, 8))};
  nn::LSTM lstm{
      register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2).dropout(0.3)))};
  nn::Linear head{register_module("head", nn::Linear(8, 16))};
};

// A language model passes its detached hidden state from batch to batch, with clipped gradients.
void recurrent(const Adopt& adopt, LoopTrace& trace) {
  Reader net;
  adopt(net);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  std::tuple<Tensor, Tensor> state{torch::zeros({2, 4, 8}), torch::zeros({2, 4, 8})};
  for (int step = 0; step < kSteps; ++step) {
    const Tensor words = trace.batch(step, {5, 4}).mul(7).to(at::kLong).remainder(16);
    net.zero_grad();
    const auto [out, next] = net.lstm(net.embed(words), state);
    torch::nn::functional::cross_entropy(net.head(out).view({-1, 16}), words.view({-1})).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.25);
    optimizer.step();
    state = {std::get<0>(next).detach(), std::get<1>(next).detach()};
    trace.note(net, {std::get<0>(state)});
  }
}

struct Picture : nn::Module {
  Tensor pixels = register_parameter("pixels", torch::rand({1, 3, 8, 8}));
};

// A picture is trained by features of a frozen network that is not adopted.
void transferred_style(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential features(nn::Conv2d(3, 4, 3), nn::ReLU(), nn::Conv2d(4, 4, 3));
  for (Tensor& p : features->parameters()) p.requires_grad_(false);
  Picture picture;
  adopt(picture);
  const Tensor wanted = features->forward(batch_of_step(99, {1, 3, 8, 8}));
  torch::optim::Adam optimizer(picture.parameters(), 0.05);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor found = features->forward(picture.pixels);
    const auto gram = [](const Tensor& of) {
      return of.flatten(2).bmm(of.flatten(2).transpose(1, 2));
    };
    (torch::mse_loss(gram(found), gram(wanted)) + torch::mse_loss(found, wanted)).backward();
    optimizer.step();
    const at::NoGradGuard no_grad;
    picture.pixels.clamp_(0, 1);
    trace.note(picture);
  }
}

// Another thread makes batches while a step runs.
void with_a_worker(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Dropout(0.2),
                     nn::Linear(8, 1));
  adopt(*net);
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  const auto load = [&trace](int step) {
    return std::async(std::launch::async, [&trace, step] {
      return trace.batch(step, {8, 4}) * 2 + 1;
    });
  };
  auto coming = load(0);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = coming.get();
    coming = load(step + 1);
    optimizer.zero_grad();
    torch::binary_cross_entropy_with_logits(net->forward(x), x.slice(1, 0, 1).gt(0).to(at::kFloat))
        .backward();
    optimizer.step();
    trace.note(*net);
  }
}

// Writes to weights between adopt() and the first step, like a custom initialisation.
void started_by_hand(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  {
    const at::NoGradGuard no_grad;
    for (Tensor& p : net->parameters()) p.uniform_(-0.3, 0.3);
  }
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

// All gradients are views of one buffer, which the program clears and reads.
void flat_gradients(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  Tensor flat = torch::zeros({121});
  std::int64_t begin = 0;
  for (Tensor& p : net->parameters()) {
    p.mutable_grad() = flat.narrow(0, begin, p.numel()).view(p.sizes());
    begin += p.numel();
  }
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    flat.zero_();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net, {flat});
  }
}

// The program takes its gradients from .grad once.
void held_gradients(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Tensors held;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(false);
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    for (std::size_t p = held.size(); p < net->parameters().size(); ++p)
      held.push_back(net->parameters()[p].grad());
    optimizer.step();
    trace.note(*net, held);
  }
}

// An optimizer of the program's own updates the rows of a sparse gradient.
void sparse_gradients(const Adopt& adopt, LoopTrace& trace) {
  nn::Embedding table(nn::EmbeddingOptions(20, 4).sparse(true));
  adopt(*table);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor rows = batch_of_step(step, {20}).argsort().slice(0, 0, 6);
    const Tensor loss = table->forward(rows).pow(2).mean();
    table->zero_grad();
    loss.backward();
    trace.note(*table);
    const at::NoGradGuard no_grad;
    const Tensor gradient = table->weight.grad().coalesce();
    table->weight.index_add_(0, gradient.indices()[0], gradient.values(), -0.1);
  }
}

// A batch in three parts, whose gradients add up.
void micro_batches(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < 3; ++part)
      net->forward(trace.batch(3 * step + part, {8, 4})).pow(2).mean().div(3).backward();
    optimizer.step();
    trace.note(*net);
  }
}

// Norms of all parameters are logged before each step, with gradients on.
void logged_norms(const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    Tensor norms = torch::zeros({});
    for (const Tensor& p : net->parameters()) norms = norms + p.norm();
    optimizer.zero_grad();
    net->forward(trace.batch(step, {8, 4})).pow(2).mean().backward();
    optimizer.step();
    trace.note(*net, {norms});
  }
}

enum class Graphs { one, two };

// Two losses, each with a backward pass of its own.
void two_losses(Graphs graphs, const Adopt& adopt, LoopTrace& trace) {
  nn::Sequential net = deep_net();
  adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = trace.batch(step, {8, 4});
    optimizer.zero_grad();
    const Tensor y = net->forward(x);
    const Tensor other = graphs == Graphs::two ? net->forward(-x) : y;
    y.pow(2).mean().backward({}, graphs == Graphs::one);
    other.abs().mean().backward();
    optimizer.step();
    trace.note(*net);
  }
}

}  // namespace

std::vector<Written> written_loops() {
  using namespace std::placeholders;
  return {{"complex parameters", complex_parameters},
          {"weights loaded after adopt() and later", loaded_after_adopt},
          {"updates through data()", std::bind(updated_by_hand, Update::by_data, _1, _2)},
          {"updates by set_data()", std::bind(updated_by_hand, Update::by_set_data, _1, _2)},
          {"another type, then another layout", converted},
          {"a learned factor in no module", free_leaf},
          {"batches in the program's memory", batch_of_the_programs_memory},
          {"hooks", counted_hooks},
          {"a penalty on gradients", penalty_on_gradients},
          {"second derivatives", differential_equation},
          {"a model that is frozen at first", frozen_at_first},
          {"players that freeze each other in turn", frozen_in_turn},
          {"a head that is adopted after the first training", finetuned},
          {"a scaled loss that overflows once", scaled},
          {"closures of LBFGS", by_closures},
          {"evaluations within steps", evaluated},
          {"gradients in one buffer", flat_gradients},
          {"gradients by handles", held_gradients},
          {"sparse gradients", sparse_gradients},
          {"norms that are logged before a step", logged_norms},
          {"micro-batches", micro_batches},
          {"two losses of one graph", std::bind(two_losses, Graphs::one, _1, _2)},
          {"two losses of two graphs", std::bind(two_losses, Graphs::two, _1, _2)},
          {"a recurrent network with dropout", recurrent},
          {"the transfer of a style", transferred_style},
          {"a worker that loads", with_a_worker},
          {"an operator of the program's own", operator_of_its_own},
          {"weights that start by hand", started_by_hand}};
}

}  // namespace cox::test
