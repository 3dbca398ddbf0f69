// Session::keep: an interrupted adopted loop continues from its newest save.
#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coxswain/adamw.h"
#include "coxswain/safetensors.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "small_training.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Tensors = std::vector<at::Tensor>;
using Flags = std::vector<std::string>;

constexpr std::int64_t kEpochs = 3, kBatches = 4, kSamples = 24;
constexpr int kToTheEnd = std::numeric_limits<int>::max();

struct Trained {
  std::vector<double> losses;
  Tensors state;
  std::int64_t first_epoch = -1, first_batch = -1;  // the first trained batch
};

// Two layers, dropout and batch statistics, and a rank's loss of some samples.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 1));
  }
  at::Tensor loss(const std::vector<std::size_t>& samples, int rank) {
    at::Tensor x = torch::empty({static_cast<std::int64_t>(samples.size()), 6});
    for (std::size_t i = 0; i < samples.size(); ++i)
      x[static_cast<std::int64_t>(i)] = torch::sin(torch::arange(6, torch::kFloat) * 0.7 +
                                                   static_cast<double>(samples[i]) + rank);
    const at::Tensor hidden = torch::dropout(torch::relu(norm(first(x))), 0.2, is_training());
    return torch::mse_loss(second(hidden), x.sum(1, true) + 0.1 * torch::randn({x.size(0), 1}));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

Tensors state_of(const torch::nn::Module& net) {
  Tensors state;
  for (const at::Tensor& p : net.parameters()) state.push_back(p.detach().clone());
  for (const at::Tensor& b : net.buffers()) state.push_back(b.detach().clone());
  return state;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

// Updates by the loss of the batch, which LBFGS evaluates several times.
template <class Optimizer>
double update(Optimizer& optimizer, const std::function<at::Tensor()>& loss_of) {
  const auto closure = [&] {
    optimizer.zero_grad();
    at::Tensor loss = loss_of();
    loss.backward();
    return loss;
  };
  if constexpr (std::is_same_v<Optimizer, AdamW>) {
    const at::Tensor loss = closure();
    optimizer.step();
    return loss.template item<double>();
  } else {
    return optimizer.step(closure).template item<double>();
  }
}

// Trains the remaining epochs, or `batches` batches, in a new session.
template <class Make>
Trained train(const Flags& flags, const Make& make, int batches = kToTheEnd,
              ClosureOptimizer closure = ClosureOptimizer::no) {
  auto session = solo_session(flags);
  Net net(3 + static_cast<std::uint64_t>(session.rank()));
  AdoptOptions options;
  options.closure_optimizer = closure;
  session.adopt(*net, options);
  const auto optimizer = make(*net);
  torch::data::samplers::RandomSampler sampler(kSamples);
  session.add_state("sampler", sampler);
  torch::manual_seed(40 + static_cast<std::uint64_t>(session.rank()));
  Trained trained;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;
  for (; epoch < kEpochs; ++epoch, batch = 0) {
    for (; batch < kBatches; ++batch) {
      session.keep(*optimizer, epoch, batch);
      if (batches-- == 0) return trained;
      if (trained.losses.empty()) {
        trained.first_epoch = epoch;
        trained.first_batch = batch;
      }
      if (batch == 0) sampler.reset(kSamples);
      const std::vector<std::size_t> samples = *sampler.next(kSamples / kBatches);
      trained.losses.push_back(
          update(*optimizer, [&] { return net->loss(samples, session.rank()); }));
    }
  }
  trained.state = state_of(*net);
  session.finish();
  return trained;
}

// Trains seven batches with a save after every two updates, then continues from the newest save.
template <class Make>
void check_goes_on(const std::string& title, const Make& make,
                   ClosureOptimizer closure = ClosureOptimizer::no, const Flags& flags = {}) {
  CAPTURE(title);
  auto probe = solo_session();
  const SharedFolder folder(probe);
  probe.finish();
  Flags saving = flags;
  saving.insert(saving.end(),
                {"--cox.checkpoint.directory=" + folder.text(), "--cox.checkpoint.every_steps=2"});
  const Trained whole = train(flags, make, kToTheEnd, closure);
  Trained first = train(saving, make, 7, closure);
  saving.push_back("--cox.checkpoint.resume=on");
  const Trained second = train(saving, make, kToTheEnd, closure);
  const std::int64_t done = second.first_epoch * kBatches + second.first_batch;
  // LBFGS takes several steps between two calls, and is saved once a save is due.
  CHECK(done == (closure == ClosureOptimizer::yes ? 7 : 6));
  REQUIRE(first.losses.size() == 7);
  first.losses.resize(static_cast<std::size_t>(done));
  first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
  CHECK(first.losses == whole.losses);
  CHECK(same(second.state, whole.state));
}

// Two models with an optimizer and a schedule each, and a program's own number.
struct TwoModels {
  Tensors state;
  std::vector<double> rates;
  double own = 0;
};

TrainingPart part_of(double& number) {
  return {.state =
              [&number] {
                return std::vector<NamedTensor>{{"value", at::scalar_tensor(number, at::kDouble)}};
              },
          .load =
              [&number](std::span<const NamedTensor> state) {
                number = state[0].tensor.item<double>();
                return Status();
              }};
}

TwoModels train_two(const Flags& flags, int batches) {
  using Plateau = torch::optim::ReduceLROnPlateauScheduler;
  auto session = solo_session(flags);
  Net one(1);
  Net two(2);
  session.adopt(*one, {.name = "one"});
  session.adopt(*two);
  torch::optim::Adam a(one->parameters(), torch::optim::AdamOptions(0.01));
  torch::optim::SGD b(two->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::StepLR steps(a, 2, 0.5);
  Plateau plateau(b, Plateau::min, 0.5F, 1);
  TwoModels seen;
  session.add_state("steps", steps);
  session.add_state("plateau", plateau);
  session.add_state("own", part_of(seen.own));
  torch::manual_seed(9);
  std::int64_t epoch = 0;
  std::int64_t unused = 0;
  for (; epoch < 12; ++epoch) {
    session.keep({a, b}, epoch, unused);
    if (batches-- == 0) return seen;
    a.zero_grad();
    b.zero_grad();
    (one->loss({1, 2, 3}, session.rank()) + two->loss({4, 5}, 0)).backward();
    a.step();
    b.step();
    steps.step();
    plateau.step(1.0F);  // without improvement
    seen.own += 0.125;
    seen.rates = {a.param_groups()[0].options().get_lr(), b.param_groups()[0].options().get_lr()};
  }
  seen.state = state_of(*one);
  for (const at::Tensor& each : state_of(*two)) seen.state.push_back(each);
  return seen;
}

template <class Optimizer, class Options>
auto maker(Options options) {
  return [options](const torch::nn::Module& net) {
    return std::make_unique<Optimizer>(net.parameters(), options);
  };
}

// Returns the error of `use` of a session.
template <class Use>
std::string refusal(const Flags& flags, const Use& use) {
  auto session = solo_session(flags);
  Net net(1);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  return error_of([&] { use(session, net, optimizer); });
}

void contains(const std::string& text, const char* part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_SUITE("Session::keep") {
  TEST_CASE("a loop goes on from its save bit for bit, with each kind of optimizer") {
    namespace optim = torch::optim;
    check_goes_on("SGD", maker<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9)));
    check_goes_on("Adam", maker<optim::Adam>(optim::AdamOptions(0.01)));
    check_goes_on("AdamW", maker<optim::AdamW>(optim::AdamWOptions(0.01).amsgrad(true)));
    check_goes_on("RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5)));
    check_goes_on("Adagrad", maker<optim::Adagrad>(optim::AdagradOptions(0.05)));
    check_goes_on("cox::AdamW", maker<AdamW>(AdamWOptions{.lr = 0.01}));
    check_goes_on("LBFGS", maker<optim::LBFGS>(optim::LBFGSOptions(0.1).max_iter(3)),
                  ClosureOptimizer::yes);
  }

  TEST_CASE("a loop under plans for memory and formats goes on bit for bit") {
    const auto adam = maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
    const Flags settings[] = {
        {"--cox.memory.force=*=recompute", "--cox.memory.smallest_bytes=1"},
        {"--cox.memory.mode=observe"},
        {"--cox.precision.format=bf16"},
        {"--cox.precision.format=fp8", "--cox.precision.fp8_scaling=delayed"}};
    for (const Flags& flags : settings)
      check_goes_on(flags.front(), adam, ClosureOptimizer::no, flags);
  }

  TEST_CASE("an optimizer whose parameters were given in another order goes on by name") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    const auto adam = [](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                  torch::optim::AdamOptions(0.01));
    };
    const auto forwards = [&](const torch::nn::Module& net) { return adam(net.parameters()); };
    const auto backwards = [&](const torch::nn::Module& net) {
      std::vector<at::Tensor> parameters = net.parameters();
      return adam({parameters.rbegin(), parameters.rend()});
    };
    const Trained whole = train({}, forwards);
    train({flag, "--cox.checkpoint.every_steps=3"}, forwards, 5);
    const Trained second = train({flag, "--cox.checkpoint.resume=on"}, backwards);
    CHECK(second.first_batch == 3);
    CHECK(same(second.state, whole.state));
  }

  TEST_CASE("two models with two optimizers, schedules and a part of the program's own go on") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    const TwoModels whole = train_two({}, kToTheEnd);
    train_two({flag, "--cox.checkpoint.every_steps=5"}, 7);
    const TwoModels second = train_two({flag, "--cox.checkpoint.resume=on"}, kToTheEnd);
    CHECK(same(second.state, whole.state));
    CHECK(second.rates == whole.rates);
    CHECK(whole.rates[1] < 0.1);
    CHECK(second.own == whole.own);
    const auto model =
        read_safetensors(folder.text() + "/" + io::save_name(5) + "/model.safetensors");
    REQUIRE(model.ok());
    CHECK(model->tensors.front().name == "model1.first.bias");
    CHECK(model->tensors.back().name == "one.second.weight");
  }

  TEST_CASE("a loop that is asked to stop saves at its next keep()") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    const auto run = [&](const Flags& flags, bool is_asked) {
      auto session = solo_session(flags);
      Net net(1);
      session.adopt(*net);
      torch::optim::SGD optimizer(net->parameters(), 0.05);
      torch::manual_seed(5);
      std::int64_t epoch = 0;
      std::int64_t batch = 0;
      for (; batch < 8 && !session.stop_requested(); ++batch) {
        session.keep(optimizer, epoch, batch);
        update(optimizer, [&] { return net->loss({1, 2, 3}, 0); });
        if (is_asked && batch == 2 && session.rank() == 0) std::raise(SIGTERM);
      }
      return state_of(*net);
    };
    const Tensors whole = run({}, false);
    run({flag}, true);
    const auto saves = io::saves_in(folder.text());
    REQUIRE(saves.size() == 1);
    CHECK(same(run({flag, "--cox.checkpoint.resume=on"}, false), whole));
  }

  TEST_CASE("between backward() and the update nothing is saved") {
    auto session = solo_session();
    const SharedFolder folder(session);
    session.finish();
    auto saving = solo_session({"--cox.checkpoint.directory=" + folder.text(),
                                "--cox.checkpoint.every_steps=1", "--cox.checkpoint.keep=100"});
    Net net(1);
    saving.adopt(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
    for (; batch < 7; ++batch) {
      saving.keep(optimizer, epoch, batch);
      net->loss({1, 2, 3}, 0).backward();
      if (batch % 3 != 2) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    saving.finish();
    const auto saves = io::saves_in(folder.text());
    REQUIRE(saves.size() == 2);  // for the updates of batches 2 and 5, made by the calls after them
    CHECK(io::step_of_save(saves[0]) == 1);
    CHECK(io::step_of_save(saves[1]) == 2);
  }

  TEST_CASE("weights that are not finite are not saved") {
    auto session = solo_session();
    const SharedFolder folder(session);
    session.finish();
    auto saving = solo_session(
        {"--cox.checkpoint.directory=" + folder.text(), "--cox.checkpoint.every_steps=1"});
    Net net(1);
    saving.adopt(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
    for (; batch < 4; ++batch) {
      saving.keep(optimizer, epoch, batch);
      update(optimizer, [&] {
        at::Tensor loss = net->loss({1, 2, 3}, 0);
        return batch == 1 ? loss * std::numeric_limits<float>::infinity() : loss;
      });
    }
    const std::string end = error_of([&] { saving.finish(); });
    CHECK(end.find("expected finite weights") != std::string::npos);
    error_of([&] { saving.finish(); });  // otherwise the exit code reports it
    CHECK(io::saves_in(folder.text()).size() == 1);
  }

  TEST_CASE("wrong uses are refused on all ranks, with what to do") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
    contains(refusal({}, [&](Session& s, Net&, auto& o) { s.keep(o, epoch, batch); }),
             "expected a session with an adopted model");
    contains(refusal({},
                     [&](Session& s, Net& net, auto& o) {
                       AdoptOptions options;
                       options.only_watch = true;
                       s.adopt(*net, options);
                       s.keep(o, epoch, batch);
                     }),
             "adopt without only_watch");
    contains(refusal({},
                     [&](Session& s, Net& net, auto& o) {
                       s.adopt(*net);
                       s.keep(o, epoch, batch);
                       s.add_state("late", TrainingPart{});
                     }),
             "expected a call before the first keep()");
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    contains(refusal({flag, "--cox.checkpoint.resume=on"},
                     [&](Session& s, Net& net, auto& o) {
                       s.adopt(*net);
                       s.keep(o, epoch, batch);
                     }),
             "expected a save in");
    contains(refusal({},
                     [&](Session& s, Net& net, auto& o) {
                       s.adopt(*net);
                       o.param_groups()[0].options().set_lr(-1);
                       s.keep(o, epoch, batch);
                     }),
             "expected a number of 0 or more, found -1");
  }

  TEST_CASE("a model with another head takes what fits of a save, if it is asked to") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    const auto run = [&](std::int64_t outputs, const Flags& flags) {
      auto session = solo_session(flags);
      torch::manual_seed(3);
      torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Linear(6, outputs));
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      session.adopt(*net);
      std::int64_t epoch = 0;
      std::int64_t batch = 0;
      Tensors first;
      for (; batch < 4; ++batch) {
        session.keep(optimizer, epoch, batch);
        if (first.empty()) first = state_of(*net);
        update(optimizer, [&] { return net->forward(torch::ones({2, 4})).square().mean(); });
      }
      session.keep(optimizer, epoch, batch);
      const std::size_t states = optimizer.state().size();
      session.finish();
      first.push_back(net->parameters()[0].detach().clone());
      CHECK(states == 4);
      return first;
    };
    const Tensors saved = run(1, {flag, "--cox.checkpoint.every_steps=4"});
    contains(refusal({flag, "--cox.checkpoint.resume=on"},
                     [&](Session& s, Net& net, auto& o) {
                       std::int64_t counter = 0;
                       s.adopt(*net);
                       s.keep(o, counter, counter);
                     }),
             "missing: first.bias");
    const Tensors fitted =
        run(3, {flag, "--cox.checkpoint.resume=on", "--cox.checkpoint.partial=on"});
    CHECK(sdk_test::same_bits(fitted[0],
                              saved.back()));  // the body continues, and the loop has ended
    CHECK(fitted[2].sizes() == at::IntArrayRef({3, 6}));
  }

  TEST_CASE("a model that no save can hold is refused before the first step") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    contains(refusal({"--cox.checkpoint.directory=" + folder.text()},
                     [&](Session& s, Net& net, auto& o) {
                       net->register_buffer("half", torch::zeros({2}, torch::kComplexHalf));
                       s.adopt(*net);
                       std::int64_t counter = 0;
                       s.keep(o, counter, counter);
                     }),
             "tensor \"half\"");
  }

  TEST_CASE("counters may be of any type of whole numbers") {
    std::int8_t small = 5;
    std::uint64_t large = 7;
    const KeptCounter first(small);
    const KeptCounter second(large);
    CHECK(first.get() == 5);
    CHECK(first.set(-128));
    CHECK(small == -128);
    CHECK_FALSE(first.set(128));
    CHECK(second.set(std::numeric_limits<std::int64_t>::max()));
    CHECK_FALSE(second.set(-1));
  }

  TEST_CASE("counters that are not the same on all ranks are refused where a save is due") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    const int ranks = probe.world_size();
    probe.finish();
    if (ranks == 1) return;
    std::int64_t batch = 0;
    contains(
        refusal({"--cox.checkpoint.directory=" + folder.text(), "--cox.checkpoint.every_steps=1"},
                [&](Session& s, Net& net, auto& o) {
                  s.adopt(*net);
                  std::int64_t own = s.rank();
                  s.keep(o, own, batch);
                  update(o, [&] { return net->loss({1, 2, 3}, 0); });
                  s.keep(o, own, batch);
                  update(o, [&] { return net->loss({1, 2, 3}, 0); });
                  s.keep(o, own, batch);  // ends the step after the save
                }),
        "the loop's counters) of rank 1");
  }
}
