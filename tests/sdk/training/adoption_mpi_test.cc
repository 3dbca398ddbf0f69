#include <torch/library.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/training/capabilities.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Tensors = std::vector<at::Tensor>;

// A model without marked blocks, with dropout and statistics.
struct NetImpl : torch::nn::Module {
  torch::nn::Sequential layers{register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(6, 12), torch::nn::Linear(12, 12)))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(12))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(12, 1))};

  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = torch::relu(layers->at<torch::nn::LinearImpl>(i).forward(x));
    }
    return head(torch::dropout(norm(x), 0.1, is_training()));
  }
};
TORCH_MODULE(Net);

Net make_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}

// A rank's batches come from their own generator.
class Batches {
 public:
  explicit Batches(int rank)
      : generator_(at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(rank))) {}
  at::Tensor next() { return at::randn({8, 6}, generator_); }

 private:
  at::Generator generator_;
};

at::Tensor loss_of(Net& net, const at::Tensor& x) {
  return torch::mse_loss(net(x), x.sum(1, true));
}

Tensors state_of(Net& net) {
  Tensors state;
  for (const at::Tensor& p : net->parameters()) state.push_back(p.detach().clone());
  for (const at::Tensor& b : net->buffers()) state.push_back(b.detach().clone());
  return state;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

// The plain loop: `backwards` micro-batches a step.
Tensors train(Net& net, int rank, int steps, int backwards) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Batches batches(rank);
  torch::manual_seed(7);
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    for (int k = 0; k < backwards; ++k) loss_of(net, batches.next()).backward();
    optimizer.step();
  }
  return state_of(net);
}

// The same loop with our calls: plain means of gradients, one after each backward().
Tensors train_by_hand(Session& session, Net& net, int steps, int backwards) {
  ManualParallel ranks(session);
  ranks.sync_parameters(net->parameters());
  ranks.sync_buffers(net->buffers());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Batches batches(session.rank());
  torch::manual_seed(7);
  for (int i = 0; i < steps; ++i) {
    auto step = session.step();
    optimizer.zero_grad();
    for (int k = 0; k < backwards; ++k) {
      loss_of(net, batches.next()).backward();
      ranks.all_reduce_gradients(step, net->parameters());
    }
    optimizer.step();
    ranks.close(step);
  }
  return state_of(net);
}

// Sample i depends on i alone.
class Waves final : public Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  Batch get(std::span<const std::int64_t> indices) const override {
    std::vector<double> last(indices.begin(), indices.end());
    const auto rows = static_cast<std::int64_t>(indices.size());
    const at::Tensor x = torch::tensor(last, at::kFloat).view({rows, 1}) * torch::arange(1, 7);
    return {torch::sin(x), torch::cos(x.sum(1, true)), rows};
  }
};

// Results of both loops: a rank's batches, its losses, then the parameters.
struct Run {
  std::vector<Batch> batches;
  Tensors seen;
};

torch::nn::Sequential make_plain() {
  torch::manual_seed(4);
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::Tanh(),
                               torch::nn::Linear(16, 1));
}

Run run_with_trainer(std::uint64_t steps) {
  auto session = solo_session();
  auto net = make_plain();
  AdamW optimizer(net->parameters(), {.lr = 0.01});
  Trainer trainer(session, *net, optimizer, {.global_batch = 8, .steps = steps});
  const Waves waves;
  Run run;
  for (auto& step : trainer.steps(waves)) {
    run.batches.push_back(step.batch());
    const at::Tensor loss = step.forward(
        [&] { return torch::mse_loss(net->forward(step.batch().inputs), step.batch().targets); });
    step.backward(loss);
    step.update();
    run.seen.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : net->parameters()) run.seen.push_back(p.detach().clone());
  session.finish();
  return run;
}

Tensors run_adopted(const std::vector<Batch>& batches) {
  auto session = solo_session();
  auto net = make_plain();
  session.adopt(*net);
  AdamW optimizer(net->parameters(), {.lr = 0.01});
  Tensors seen;
  for (const Batch& batch : batches) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(net->forward(batch.inputs), batch.targets);
    loss.backward();
    optimizer.step();
    seen.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : net->parameters()) seen.push_back(p.detach().clone());
  session.finish();
  return seen;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Trains a net with a line search. `prepare` returns the closure's treatment of a loss. Returns the
// losses that the optimizer saw, then weights and buffers.
template <class Prepare>
Tensors train_lbfgs(Session& session, const Prepare& prepare) {
  Net net = make_net(1);
  net->eval();  // no dropout, because a line search needs a function
  const auto evaluate = prepare(net);
  torch::optim::LBFGS optimizer(
      net->parameters(),
      torch::optim::LBFGSOptions(0.5).max_iter(8).line_search_fn("strong_wolfe"));
  Batches batches(session.rank());
  Tensors seen;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = batches.next();
    optimizer.step([&] {
      optimizer.zero_grad();
      seen.push_back(evaluate(loss_of(net, x)).detach().clone());
      return seen.back();
    });
  }
  const Tensors state = state_of(net);
  seen.insert(seen.end(), state.begin(), state.end());
  return seen;
}

std::uint64_t steps_of(Session& session) {
  return session.state().step().steps_ended();
}

// Recomputes the forward pass of a net in backward, like torch::utils::checkpoint.
struct ComputedAgain : torch::autograd::Function<ComputedAgain> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& part) {
    context->save_for_backward({x});
    context->saved_data["part"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(part));
    return part(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto part =
        c10::static_intrusive_pointer_cast<Kept>(context->saved_data["part"].toCapsule());
    part->function(x).backward(gradients[0]);
    return {x.grad(), {}};
  }
  struct Kept : torch::CustomClassHolder {
    explicit Kept(std::function<at::Tensor(const at::Tensor&)> f) : function(std::move(f)) {}
    std::function<at::Tensor(const at::Tensor&)> function;
  };
};

TEST_SUITE("adoption") {
  TEST_CASE("a loop that knows nothing of us ends with the bits of one that averages by hand") {
    for (const int backwards : {1, 3}) {
      Tensors expected;
      {
        auto session = solo_session();
        Net net = make_net(session.rank() == 0 ? 1 : 50);
        expected = train_by_hand(session, net, 6, backwards);
        session.finish();
      }
      auto session = solo_session();
      Net net = make_net(session.rank() == 0 ? 1 : 60);
      session.adopt(*net);
      const Tensors found = train(net, session.rank(), 6, backwards);
      CHECK(steps_of(session) == 5);  // finish() closes the sixth
      session.finish();
      CHECK(same(expected, found));
    }
  }

  TEST_CASE("alone, an adopted model trains with the bits of one that is not") {
    auto session = solo_session();
    if (session.world_size() > 1) return;
    Net plain = make_net(1), adopted = make_net(1);
    const Tensors expected = train(plain, 0, 6, 2);
    session.adopt(*adopted);
    CHECK(same(expected, train(adopted, 0, 6, 2)));
  }

  TEST_CASE("parameters are equal on all ranks at the end, whatever they were") {
    auto session = solo_session();
    Net net = make_net(static_cast<std::uint64_t>(session.rank()) + 1);
    session.adopt(*net);
    train(net, session.rank(), 4, 1);
    session.finish();
    for (const at::Tensor& p : net->parameters()) {
      const double sum = p.detach().to(at::kDouble).abs().sum().item<double>();
      auto again = solo_session();
      const auto all =
          cox::detail::gather_values(again.state().job().data(), std::hash<double>()(sum));
      REQUIRE(all.ok());
      CHECK(cox::detail::ranks_that_differ(*all).empty());
    }
  }

  TEST_CASE("an evaluation opens no step, and grad() averages nothing") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net);
    Batches batches(session.rank());
    {
      const at::NoGradGuard no_grad;
      loss_of(net, batches.next());
    }
    CHECK_FALSE(session.state().control().is_started());
    const at::Tensor loss = loss_of(net, batches.next());
    const Tensors mine = torch::autograd::grad({loss}, net->parameters(), {}, true);
    loss.backward();
    const at::Tensor averaged = net->parameters()[0].grad();
    CHECK(sdk_test::same_bits(mine[0], averaged) == (session.world_size() == 1));
    CHECK(steps_of(session) == 0);
  }

  TEST_CASE(
      "a look at parameters on one rank alone hangs nobody, neither before nor after training") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net);
    const auto look = [&] {
      if (session.rank() == 0) CHECK(net->head->weight.square().sum().item<float>() > 0);
    };
    look();
    train(net, session.rank(), 3, 1);
    look();
    session.finish();
  }

  TEST_CASE("blocks are named and what they take is measured") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net);
    auto& blocks = session.capabilities().blocks;
    const std::vector<std::string> names = {"layers.0", "layers.1", "norm", "head"};
    CHECK(blocks.names() == names);
    train(net, session.rank(), 2, 1);
    session.finish();
  }

  TEST_CASE("watched only, every rank trains by itself, with the bits of a loop without us") {
    const auto own_seed = [](const Session& session) { return session.rank() == 0 ? 1u : 60u; };
    auto session = solo_session();
    Net plain = make_net(own_seed(session)), watched = make_net(own_seed(session));
    const int steps = 4 + session.rank();  // ranks may be any number of steps apart
    const Tensors expected = train(plain, session.rank(), steps, 2);
    session.adopt(*watched, {.only_watch = true});
    const Tensors found = train(watched, session.rank(), steps, 2);
    CHECK(same(expected, found));
    CHECK(steps_of(session) == static_cast<std::uint64_t>(steps) - 1);
    session.finish();
  }

  // `again`: the parts of the net recomputed in backward, as by a program's own checkpoints.
  TEST_CASE("a forward pass that backward computes again, whole or in part, is one step") {
    for (const bool is_whole : {false, true}) {
      CAPTURE(is_whole);
      const auto train_with_checkpoints = [&](Net& net, int rank, const auto& after_backward) {
        torch::optim::SGD optimizer(net->parameters(), 0.05);
        Batches batches(rank);
        torch::manual_seed(7);
        net->eval();
        for (int i = 0; i < 4; ++i) {
          optimizer.zero_grad();
          const at::Tensor x = batches.next().requires_grad_();
          const auto layers = [&](const at::Tensor& input) { return net->layers->forward(input); };
          const auto whole = [&](const at::Tensor& input) { return net(input); };
          const at::Tensor y = is_whole ? ComputedAgain::apply(x, whole)
                                        : net->head(ComputedAgain::apply(x, layers));
          y.square().mean().backward();
          after_backward(i);
          optimizer.step();
        }
        return state_of(net);
      };
      Tensors expected;
      {
        auto session = solo_session();
        Net net = make_net(1);
        ManualParallel ranks(session);
        std::optional<StepScope> step(session.step());
        expected = train_with_checkpoints(net, session.rank(), [&](int) {
          ranks.all_reduce_gradients(*step, net->parameters());
          ranks.close(*step);
          step.reset();
          step.emplace(session.step());
        });
        step.reset();
        session.finish();
      }
      auto session = solo_session();
      Net net = make_net(1);
      session.adopt(*net);
      const Tensors found = train_with_checkpoints(net, session.rank(), [&](int i) {
        CHECK(steps_of(session) == static_cast<std::uint64_t>(i));
      });
      CHECK(same(expected, found));
      session.finish();
      CHECK(steps_of(session) == 4);
    }
  }

  TEST_CASE(
      "an update begins before its first write, and an evaluation behind it is no part of it") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net, {.only_watch = true});
    Batches batches(session.rank());
    const auto& seconds = session.state().recorder().report().phase_seconds;
    const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    for (int i = 0; i < 2; ++i) {
      loss_of(net, batches.next()).backward();
      const at::NoGradGuard no_grad;
      torch::ones({8}).mul_(0.9), rest();  // a momentum
      for (at::Tensor& each : net->parameters()) each.add_(each.grad(), -0.05);
      rest(), loss_of(net, batches.next());
    }
    session.finish();
    for (const Phase phase : {Phase::optimizer, Phase::data})
      CHECK(seconds[static_cast<std::size_t>(phase)] > 0.025);  // less the time in a queue
  }

  TEST_CASE("a watched loop may tell what cannot be found, while its step is open") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net, {.only_watch = true});
    CHECK(session.open_step() == nullptr);
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    const at::Tensor loss = loss_of(net, Batches(session.rank()).next());
    loss.backward();
    REQUIRE(session.open_step() != nullptr);
    session.open_step()->loss(2.5, 8);
    optimizer.step();
    CHECK(session.state().recorder().report().loss == 2.5);
    session.finish();
    CHECK(session.open_step() == nullptr);
  }

  TEST_CASE("two models of one loop are averaged each after its own backward pass") {
    auto session = solo_session();
    Net first = make_net(1), second = make_net(2);
    session.adopt(*first, {.name = "first"});
    session.adopt(*second, {.name = "second", .blocks = {"layers"}});
    CHECK(session.capabilities().blocks.names().back() == "second.head");
    Batches batches(session.rank());
    loss_of(first, batches.next()).backward();
    CHECK_FALSE(second->parameters()[0].grad().defined());
    loss_of(second, batches.next()).backward();
    const at::Tensor gradient = second->parameters()[0].grad().clone();
    session.finish();
    auto again = solo_session();
    const auto all = cox::detail::gather_values(again.state().job().data(),
                                                std::hash<float>()(gradient.sum().item<float>()));
    REQUIRE(all.ok());
    CHECK(cox::detail::ranks_that_differ(*all).empty());
  }

  TEST_CASE("after detach() nothing is averaged or seen") {
    auto session = solo_session();
    Net net = make_net(1);
    session.adopt(*net);
    Batches batches(session.rank());
    loss_of(net, batches.next()).backward();
    session.detach(*net);
    const std::uint64_t before = cox::detail::operators_shown();
    net->zero_grad();
    const at::Tensor loss = loss_of(net, batches.next());
    const Tensors mine = torch::autograd::grad({loss}, net->parameters(), {}, true);
    loss.backward();
    CHECK(sdk_test::same_bits(mine[0], net->parameters()[0].grad()));
    CHECK(cox::detail::operators_shown() == before);
  }

  TEST_CASE("a rank that calls backward more often than the others is an error that names it") {
    auto session = solo_session();
    if (session.world_size() == 1) return;
    Net net = make_net(1);
    session.adopt(*net);
    Batches batches(session.rank());
    const std::string text = error_of([&] {
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        loss_of(net, batches.next()).backward();
        if (session.rank() == 1 && i == 1) loss_of(net, batches.next()).backward();
        optimizer.step();
      }
    });
    CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
    session.detach(*net);
    CHECK(error_of([&] { session.finish(); }).find("rank 1 differ") != std::string::npos);
  }

  TEST_CASE("an optimizer that looks at losses trains as one that averages them by hand") {
    auto session = solo_session();
    const Tensors found = train_lbfgs(session, [&](Net& net) {
      session.adopt(*net, {.closure_optimizer = ClosureOptimizer::yes});
      return [](const at::Tensor& loss) {
        loss.backward();
        return loss;
      };
    });
    session.finish();
    CHECK(found.size() > 12);  // more closures than steps
    auto other = solo_session();
    ManualParallel ranks(other);
    const Tensors expected = train_lbfgs(other, [&](Net& net) {
      return [&](const at::Tensor& loss) {
        auto step = other.step();
        loss.backward();
        ranks.all_reduce_gradients(step, net->parameters());
        ranks.close(step);
        const auto all =
            cox::detail::gather_values(other.state().job().data(), loss.item<double>());
        const double sum = std::accumulate(all->begin(), all->end(), 0.0);
        return at::full_like(loss, sum / static_cast<double>(all->size()));
      };
    });
    CHECK(same(expected, found));
  }

  TEST_CASE("an optimizer that looks at losses is found where it was not declared") {
    auto session = solo_session();
    if (session.world_size() == 1) return;
    const std::string text = error_of([&] {
      train_lbfgs(session, [&](Net& net) {
        session.adopt(*net);
        return [](const at::Tensor& loss) {
          loss.backward();
          return loss;
        };
      });
    });
    CHECK_MESSAGE(text.find("the weights") != std::string::npos, text);
    CHECK_MESSAGE(text.find("closure_optimizer") != std::string::npos, text);
  }

  TEST_CASE("beside kernels on the stream's dispatch key nothing is adopted") {
    torch::Library own(torch::Library::IMPL, "aten", cox::detail::kStreamKey, __FILE__, __LINE__);
    own.impl("erf", torch::CppFunction::makeFallthrough());
    auto session = solo_session();
    Net net = make_net(1);
    const std::string text = error_of([&] { session.adopt(*net); });
    CHECK_MESSAGE(text.find("found one of aten::erf") != std::string::npos, text);
    CHECK(text.find('\n') == std::string::npos);
  }

  TEST_CASE("losses and weights are those of a Trainer with equal batches, but for rounding") {
    const Run run = run_with_trainer(12);
    const Tensors seen = run_adopted(run.batches);
    REQUIRE(run.seen.size() == 12 + 4);
    REQUIRE(seen.size() == run.seen.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      CAPTURE(i);
      CHECK(torch::allclose(run.seen[i], seen[i], 1e-5, 1e-7));
    }
  }

  TEST_CASE("what cannot be adopted is refused in one line") {
    const auto expect = [](const std::function<void(Session&, Net&)>& work, const char* part) {
      auto session = solo_session();
      Net net = make_net(1);
      const std::string text = error_of([&] { work(session, net); });
      CHECK_MESSAGE(text.find(part) != std::string::npos, text);
      CHECK(text.find('\n') == std::string::npos);
    };
    expect([](Session& s, Net& n) { s.adopt(*n), s.adopt(*n); }, "a model that is not adopted yet");
    expect([](Session& s, Net&) { s.adopt(*torch::nn::ReLU()); }, "parameters");
    expect([](Session& s, Net& n) { s.adopt(*n, {.blocks = {"nothing"}}); }, "nothing");
    expect(
        [](Session& s, Net&) {
          torch::nn::Sequential models[2];
          for (auto& model : models) {
            for (std::size_t i = 0; i <= kMaxBlocks / 2; ++i)
              model->push_back(torch::nn::Linear(1, 1));
          }
          s.adopt(*models[0], {.name = "a"});
          s.adopt(*models[1], {.name = "b"});
        },
        "blocks in all models");
    expect([](Session& s, Net& n) { s.adopt(*n), static_cast<void>(s.step()); },
           "without adopted models");
    expect([](Session& s, Net& n) { static_cast<void>(s.step()), s.adopt(*n); },
           "before its first step");
    expect(
        [](Session& s, Net& n) {
          const StepScope open = s.step();
          s.adopt(*n);
        },
        "before its first step");
    expect(
        [](Session& s, Net& n) {
          Reducer reducer(s, n->parameters());
          s.adopt(*n);
        },
        "without Reducer");
    expect([](Session& s, Net& n) { s.adopt(*n), Reducer(s, n->parameters()); }, "adopted");
    expect(
        [](Session& s, Net& n) {
          Net other = make_net(2);
          s.adopt(*n, {.only_watch = true});
          s.adopt(*other);
        },
        "only_watch for all models of a loop or for none");
  }
}

}  // namespace
