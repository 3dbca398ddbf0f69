// Seven unmodified models in adopting loops, with memory plans: the bits are those of the plain
// loop, and predictions match measurements.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/core/text.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/stream/models.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using cox::detail::BlockWatch;
using cox::detail::counted_memory;
using stream_models::ModelCase;
using Tensors = std::vector<at::Tensor>;

constexpr std::uint64_t kSteps = 4;
constexpr std::size_t kModels = 7;

struct Trained {
  Tensors state;                  // losses, parameters, buffers, random state
  std::int64_t kept = 0;          // live before the last step, above the first level
  std::int64_t last_peak = 0;     // in the last step, above the first level
  std::int64_t counted_peak = 0;  // in the last step, in total
};

Trained train(const ModelCase& it) {
  torch::optim::AdamW optimizer(it.model->parameters(), 0.01);
  torch::manual_seed(5);
  Trained trained;
  const std::int64_t first = counted_memory().live_bytes;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    cox::detail::reset_counted_peak();
    const std::int64_t before = counted_memory().live_bytes;
    const at::Tensor loss = it.loss(3);
    loss.backward();
    trained.kept = before - first;
    trained.counted_peak = counted_memory().peak_bytes;
    trained.last_peak = trained.counted_peak - before;
    optimizer.step();
    trained.state.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : it.model->parameters()) trained.state.push_back(p.detach().clone());
  for (const at::Tensor& b : it.model->buffers()) trained.state.push_back(b.detach().clone());
  trained.state.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return trained;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), sdk_test::same_bits);
}

ModelCase model_at(std::size_t place) {
  return stream_models::model_at(place, 1);
}

struct Adopted {
  Trained trained;
  int steered = 0;  // blocks not kept by the last plan
};

Adopted train_adopted(const ModelCase& it, const std::vector<std::string>& settings) {
  auto session = solo_session(settings);
  session.adopt(*it.model);
  Adopted adopted{train(it)};
  const std::size_t blocks = session.capabilities().blocks.names().size();
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto action = action_of(session.plan(), RankId(0), BlockId(static_cast<BlockId::rep>(b)));
    adopted.steered += action != MemoryAction::keep;
  }
  session.finish();
  return adopted;
}

// A program's own function, whose node no operator makes.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {gradients[0] * 2};
  }
};

ModelCase with_own_function() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  return {"own function", model.ptr(), [model](std::uint64_t seed) mutable {
            const auto generator = at::detail::createCPUGenerator(seed);
            return Doubled::apply(model->forward(at::randn({16, 8}, generator))).square().mean();
          }};
}

// Fills part of a result by hand, invisible to operators.
ModelCase with_raw_writes() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  return {"raw writes", model.ptr(), [model](std::uint64_t seed) mutable {
            const auto generator = at::detail::createCPUGenerator(seed);
            at::Tensor x = at::randn({16, 8}, generator) + model->parameters()[0].detach().sum();
            x.data_ptr<float>()[3] = 5;
            return model->forward(x).square().mean();
          }};
}

// A language model of four recurrent layers, each a block, on packed texts of varying length.
struct Reader : torch::nn::Module {
  static constexpr std::int64_t kWords = 29, kWidth = 24, kTexts = 8;

  Reader() {
    for (int i = 0; i < 4; ++i)
      layers->push_back(torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).batch_first(true)));
  }

  at::Tensor loss(std::int64_t length) {
    namespace rnn = torch::nn::utils::rnn;
    const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(length));
    const at::Tensor text = at::randint(kWords, {kTexts, length + 1}, generator, at::kLong);
    const at::Tensor lengths = length - at::arange(kTexts, at::kLong).remainder(3);
    auto packed = rnn::pack_padded_sequence(words(text.narrow(1, 0, length)), lengths, true, false);
    for (const auto& layer : *layers)
      packed = std::get<0>(layer->as<torch::nn::LSTM>()->forward_with_packed_input(packed));
    const at::Tensor read =
        std::get<0>(rnn::pad_packed_sequence(packed, /*batch_first=*/true, 0.0, length));
    return at::cross_entropy_loss(head(read).flatten(0, 1), text.narrow(1, 1, length).flatten());
  }

  torch::nn::Embedding words{register_module("words", torch::nn::Embedding(kWords, kWidth))};
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kWidth, kWords))};
};

struct Read {
  Tensors state;                    // losses and parameters
  std::vector<std::int64_t> peaks;  // counted in each step
};

Read read_texts(const std::vector<std::int64_t>& lengths,
                const std::vector<std::string>* settings) {
  torch::manual_seed(1);
  const auto model = std::make_shared<Reader>();
  std::optional<Session> session;
  if (settings != nullptr) session.emplace(solo_session(*settings));
  if (session) session->adopt(*model);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  Read read;
  for (const std::int64_t length : lengths) {
    optimizer.zero_grad();
    cox::detail::reset_counted_peak();
    const at::Tensor loss = model->loss(length);
    loss.backward();
    read.peaks.push_back(counted_memory().peak_bytes);
    optimizer.step();
    read.state.push_back(loss.detach().clone());
  }
  if (session) session->finish();
  for (const at::Tensor& p : model->parameters()) read.state.push_back(p.detach().clone());
  return read;
}

struct Played {
  Tensors state;  // losses and parameters
  std::size_t steered = 0;
  std::size_t blocks = 0;
};

// Trains two players, whose optimizers each clear their own gradients only.
Played play(bool is_generator_first, const std::vector<std::string>* settings) {
  std::vector<ModelCase> players = stream_models::make_dcgan_players(1);
  if (is_generator_first) std::ranges::reverse(players);
  std::optional<Session> session;
  if (settings != nullptr) session.emplace(solo_session(*settings));
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers;
  for (const ModelCase& it : players) {
    if (session) session->adopt(*it.model, {.name = it.name});
    optimizers.push_back(std::make_unique<torch::optim::AdamW>(it.model->parameters(), 0.01));
  }
  Played played;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    for (std::size_t p = 0; p < players.size(); ++p) {
      optimizers[p]->zero_grad();
      const at::Tensor loss = players[p].loss(i);
      loss.backward();
      optimizers[p]->step();
      played.state.push_back(loss.detach().clone());
    }
  }
  for (const ModelCase& it : players) {
    for (const at::Tensor& p : it.model->parameters()) played.state.push_back(p.detach().clone());
  }
  if (!session) return played;
  played.blocks = session->capabilities().blocks.names().size();
  for (std::size_t b = 0; b < played.blocks; ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    played.steered += action_of(session->plan(), RankId(0), block) != MemoryAction::keep ? 1 : 0;
  }
  session->finish();
  return played;
}

// The middle block only adds, and saves nothing.
struct Shift : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + by; }
  at::Tensor by{register_parameter("by", at::zeros({32}))};
};

struct Shifted : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last(shift->forward(first(x).tanh())).tanh(); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 32))};
  std::shared_ptr<Shift> shift{register_module("shift", std::make_shared<Shift>())};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(32, 4))};
};

struct WidenedImpl : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(32, 128))};
  torch::nn::Linear b{register_module("b", torch::nn::Linear(128, 32))};
  at::Tensor forward(const at::Tensor& x) { return b(torch::gelu(a(x))); }
};
TORCH_MODULE(Widened);

TEST_SUITE("adopted memory") {
  TEST_CASE("texts longer than what was measured stay within the budget, with the same bits") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    const std::vector<std::int64_t> lengths = {10, 10, 40, 10, 25, 60, 12, 60};
    const Read kept = read_texts(lengths, nullptr);
    const TempFolder tier;
    const std::vector<std::string> offload = {"--cox.memory.tier_directory=" + tier.path().string(),
                                              "--cox.memory.smallest_bytes=256"};
    std::vector<std::string> all = offload, within = offload;
    all.emplace_back("--cox.memory.force=*=offload");
    const Read least = read_texts(lengths, &all);
    const std::int64_t most = std::ranges::max(kept.peaks);
    const std::int64_t possible = *std::max_element(least.peaks.begin() + 2, least.peaks.end());
    REQUIRE(possible < most * 9 / 10);
    const std::int64_t budget = possible + (most - possible) / 4;
    REQUIRE(kept.peaks[1] < budget);
    within.push_back("--cox.memory.budget=" + std::to_string(budget));
    const Read found = read_texts(lengths, &within);
    CHECK(same(kept.state, found.state));
    for (std::size_t i = 1; i < lengths.size(); ++i) {
      CAPTURE(lengths[i]);
      CHECK(found.peaks[i] <= budget);
    }
    // A short text is read at full speed.
    CHECK(found.peaks[3] > least.peaks[3]);
  }

  TEST_CASE("forced to recompute, every model trains with the bits of the plain loop") {
    for (std::size_t m = 0; m < kModels; ++m) {
      const Trained expected = train(model_at(m));
      const Adopted found = train_adopted(model_at(m), {"--cox.memory.force=*=recompute"});
      CHECK(same(expected.state, found.trained.state));
      CHECK_MESSAGE(found.steered > 0, "model " << m);
    }
  }

  TEST_CASE("forced to offload, every model trains with the bits of the plain loop") {
    const TempFolder tier;
    for (std::size_t m = 0; m < kModels; ++m) {
      CAPTURE(m);
      const Adopted found =
          train_adopted(model_at(m), {"--cox.memory.force=*=offload",
                                      "--cox.memory.tier_directory=" + tier.path().string(),
                                      "--cox.memory.smallest_bytes=256"});
      CHECK(same(train(model_at(m)).state, found.trained.state));
      CHECK(found.steered > 0);
    }
  }

  TEST_CASE("a budget below what the plain loop takes is kept from the second step on") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    int met = 0;
    for (std::size_t m = 0; m < kModels; ++m) {
      const Trained expected = train(model_at(m));
      const ModelCase adopted = model_at(m);
      const std::int64_t budget =
          counted_memory().live_bytes + expected.kept + expected.last_peak * 9 / 10;
      try {
        const Adopted found =
            train_adopted(adopted, {"--cox.memory.budget=" + std::to_string(budget)});
        CHECK(same(expected.state, found.trained.state));
        CHECK(found.steered > 0);
        CHECK(found.trained.counted_peak <= budget);
        ++met;
      } catch (const Error& error) {  // some are below their smallest plan
        CHECK(std::string(error.what()).find("at that peak") != std::string::npos);
      }
    }
    CHECK(met >= 3);
  }

  TEST_CASE("players that take steps in turn get a plan, with the bits of the plain loop") {
    for (const bool is_generator_first : {false, true}) {
      CAPTURE(is_generator_first);
      const Tensors expected = play(is_generator_first, nullptr).state;
      const std::vector<std::string> settings = {"--cox.memory.force=*=recompute"};
      const Played found = play(is_generator_first, &settings);
      CHECK(same(expected, found.state));
      CHECK(found.steered == found.blocks);
    }
  }

  TEST_CASE("a block that saves nothing is no reason to make no plan") {
    const auto make = [] {
      torch::manual_seed(1);
      auto model = std::make_shared<Shifted>();
      return ModelCase{"shifted", model, [model](std::uint64_t seed) {
                         const auto generator = at::detail::createCPUGenerator(seed);
                         return model->forward(at::randn({16, 8}, generator)).square().mean();
                       }};
    };
    const Adopted found = train_adopted(make(), {"--cox.memory.force=*=recompute"});
    CHECK(same(train(make()).state, found.trained.state));
    CHECK(found.steered >= 2);
  }

  TEST_CASE("what is unfrozen later is measured again, and the budget is kept from then on") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    const auto run = [](const std::vector<std::string>& settings, int unfrozen_at) {
      auto session = solo_session(settings);
      torch::manual_seed(1);
      torch::nn::Sequential net;
      for (int i = 0; i < 6; ++i) net->push_back(Widened());
      net->push_back(torch::nn::Linear(32, 4));
      session.adopt(*net);
      torch::optim::SGD optimizer(net->parameters(), 0.01);
      const auto parameters = net->parameters();
      std::int64_t last_peak = 0;
      for (int step = 0; step < 12; ++step) {
        for (std::size_t p = 0; p < parameters.size(); ++p)
          parameters[p].set_requires_grad(step >= unfrozen_at || p + 2 >= parameters.size());
        optimizer.zero_grad();
        cox::detail::reset_counted_peak();
        net->forward(torch::randn({512, 32})).pow(2).mean().backward();
        last_peak = counted_memory().peak_bytes;
        optimizer.step();
      }
      const SessionReport report = session.report();
      session.finish();
      return std::tuple(last_peak, report.memory_peak_bytes, report.memory_planned);
    };
    const auto [kept, told, is_planned] = run({"--cox.memory.mode=observe"}, 4);
    // A recomputing plan needs slightly more than the sum of its blocks. All plans count this
    // excess.
    CHECK(told >= kept);
    CHECK(told <= kept + kept / 33);
    const std::int64_t budget = kept * 7 / 10;
    const std::vector<std::string> within = {concat("--cox.memory.budget=", budget / 1024, "KiB")};
    const auto [peak, foretold, planned] = run(within, 4);
    CHECK(peak <= budget);
    CHECK(static_cast<std::int64_t>(foretold) <= budget);
    const auto [never, frozen, none] = run({"--cox.memory.mode=observe"}, 100);
    CHECK(2 * never < kept);
  }

  TEST_CASE("a step that begins with gradients is tried, too") {
    const auto run = [](std::optional<Session> session) {
      const ModelCase it = model_at(0);
      if (session) session->adopt(*it.model);
      torch::optim::SGD optimizer(it.model->parameters(), 0.01);
      for (at::Tensor& p : it.model->parameters()) p.mutable_grad() = at::ones_like(p);
      for (std::uint64_t i = 0; i < kSteps; ++i) {
        it.loss(3).backward();
        optimizer.step();  // gradients are never cleared
      }
      int steered = 0;
      if (session) {
        steered += action_of(session->plan(), RankId(0), BlockId(0)) != MemoryAction::keep;
        session->finish();
      }
      return std::pair(it.model->parameters(), steered);
    };
    const auto expected = run(std::nullopt);
    const auto found = run(solo_session({"--cox.memory.force=*=recompute"}));
    CHECK(same(expected.first, found.first));
    CHECK(found.second == 1);
  }

  TEST_CASE("a step that cannot be run again is kept, and its bits are those of the plain loop") {
    for (const auto& make : {with_own_function, with_raw_writes}) {
      const Trained expected = train(make());
      const Adopted found = train_adopted(make(), {"--cox.memory.force=*=recompute"});
      CHECK(same(expected.state, found.trained.state));
    }
  }
}

}  // namespace
