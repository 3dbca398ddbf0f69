// Random adopted loops: the state after every step is that of the plain loop, with memory observed,
// recomputed or within a budget, and formats observed. A seed draws a loop: orders of zero_grad(),
// passes of backward(), evaluations, frozen parts, loads, hooks, penalties, clipping and
// optimizers. COX_TEST_RANDOM_LOOPS=2000 tries that many.
#include <torch/torch.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "coxswain/session.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/training/loop_trace.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::test::Adopt;
using cox::test::batch_of_step;
using cox::test::LoopTrace;

namespace {

namespace nn = torch::nn;
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Flags = std::vector<std::string>;

enum class ZeroGrad { before_forward, before_backward, after_update };
enum class Evaluation { none, without_gradients, with_gradients };
enum class Penalty { none, on_inputs };

// One loop's choices, drawn from a seed.
struct Drawn {
  explicit Drawn(std::uint64_t seed) : random(seed) {
    layers = draw(1, 3);
    passes = draw(1, 2);
    zero_grad = static_cast<ZeroGrad>(draw(0, 2));
    evaluation = static_cast<Evaluation>(draw(0, 2));
    penalty = static_cast<Penalty>(draw(0, 3) == 0);
    optimizer = draw(0, 3);
    has_dropout = draw(0, 1) == 1;
    has_norm = draw(0, 1) == 1;
    has_hooks = draw(0, 3) == 0;
    clips = draw(0, 1) == 1;
    has_two_optimizers = draw(0, 3) == 0;
    frozen_until = draw(0, 2) == 0 ? draw(1, 4) : 0;
    loads_at = draw(0, 2) == 0 ? draw(0, 4) : -1;
  }
  int draw(int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  }

  std::mt19937_64 random;
  int layers = 1, passes = 1, optimizer = 0, frozen_until = 0, loads_at = -1;
  ZeroGrad zero_grad = ZeroGrad::before_forward;
  Evaluation evaluation = Evaluation::none;
  Penalty penalty = Penalty::none;
  bool has_dropout = false, has_norm = false, has_hooks = false, clips = false;
  bool has_two_optimizers = false;
};

nn::Sequential net_of(const Drawn& drawn) {
  nn::Sequential net;
  for (int layer = 0; layer < drawn.layers; ++layer) {
    net->push_back(nn::Linear(6, 6));
    if (drawn.has_norm) net->push_back(nn::BatchNorm1d(6));
    net->push_back(nn::Tanh());
    if (drawn.has_dropout) net->push_back(nn::Dropout(0.2));
  }
  net->push_back(nn::Linear(6, 1));
  return net;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(int kind, const Tensors& parameters) {
  using namespace torch::optim;
  if (kind == 0) return std::make_unique<SGD>(parameters, SGDOptions(0.05));
  if (kind == 1) return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9));
  if (kind == 2) return std::make_unique<Adam>(parameters, AdamOptions(0.01));
  return std::make_unique<RMSprop>(parameters, RMSpropOptions(0.01));
}

class RandomLoop {
 public:
  explicit RandomLoop(std::uint64_t seed) : drawn_(seed), net_(net_of(drawn_)) {
    const Tensors all = net_->parameters();
    const std::size_t cut = drawn_.has_two_optimizers ? 2 : all.size();
    optimizers_.push_back(optimizer_of(drawn_.optimizer, {all.begin(), all.begin() + cut}));
    if (cut < all.size())
      optimizers_.push_back(
          optimizer_of((drawn_.optimizer + 1) % 4, {all.begin() + cut, all.end()}));
    torch::save(net_of(drawn_), other_);
    if (!drawn_.has_hooks) return;
    for (const Tensor& p : all) p.register_hook([this](const Tensor&) { ++calls_; });
  }

  void run(const Adopt& adopt, LoopTrace& trace) {
    adopt(*net_);
    for (int step = 0; step < kSteps; ++step) {
      prepare(step);
      for (int pass = 0; pass < drawn_.passes; ++pass) run_pass(step, pass);
      if (drawn_.clips) nn::utils::clip_grad_norm_(net_->parameters(), 0.5);
      for (const auto& optimizer : optimizers_) optimizer->step();
      if (drawn_.zero_grad == ZeroGrad::after_update) zero_grad();
      trace.note(*net_, {at::full({1}, calls_)});
    }
  }

 private:
  static constexpr int kSteps = 6;

  void prepare(int step) {
    if (step == drawn_.loads_at) {
      other_.clear();
      other_.seekg(0);
      torch::load(net_, other_);
    }
    if (drawn_.frozen_until > 0) {
      const Tensors all = net_->parameters();
      for (std::size_t p = 0; p + 2 < all.size(); ++p)
        all[p].set_requires_grad(step >= drawn_.frozen_until);
    }
    if (step % 2 == 1) evaluate(step);
    if (drawn_.zero_grad == ZeroGrad::before_forward) zero_grad();
  }

  void evaluate(int step) {
    if (drawn_.evaluation == Evaluation::none) return;
    const c10::AutoGradMode mode(drawn_.evaluation == Evaluation::with_gradients);
    net_->eval();
    evaluated_ += net_->forward(batch_of_step(50 + step, {8, 6})).sum().item<double>();
    net_->train();
  }

  void run_pass(int step, int pass) {
    const Tensor x = batch_of_step(10 * step + pass, {8, 6})
                         .requires_grad_(drawn_.penalty == Penalty::on_inputs);
    const Tensor y = net_->forward(x);
    Tensor loss = (y - 0.3).pow(2).mean();
    if (drawn_.penalty == Penalty::on_inputs) {
      const Tensor slope =
          torch::autograd::grad({y}, {x}, {torch::ones_like(y)}, std::nullopt, true)[0];
      loss = loss + 0.1 * (slope.norm(2, 1) - 1).pow(2).mean();
    }
    if (pass == 0 && drawn_.zero_grad == ZeroGrad::before_backward) zero_grad();
    loss.backward();
  }

  void zero_grad() {
    for (const auto& optimizer : optimizers_) optimizer->zero_grad();
  }

  Drawn drawn_;
  nn::Sequential net_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::stringstream other_;
  std::int64_t calls_ = 0;
  double evaluated_ = 0;
};

Tensors trained(std::uint64_t seed, const Adopt& adopt) {
  torch::manual_seed(seed);
  RandomLoop loop(seed);
  LoopTrace trace;
  loop.run(adopt, trace);
  return trace.tensors();
}

Tensors trained_adopted(std::uint64_t seed, const Flags& flags) {
  Session session = solo_session(flags);
  const Tensors found = trained(seed, [&](nn::Module& model) { session.adopt(model); });
  session.finish();
  return found;
}

std::uint64_t loops_to_try() {
  const char* asked = std::getenv("COX_TEST_RANDOM_LOOPS");
  return asked == nullptr ? 40 : std::strtoull(asked, nullptr, 10);
}

}  // namespace

TEST_SUITE("random loops") {
  TEST_CASE("an adopted loop has the plain loop's state after every step") {
    const std::vector<Flags> modes = {
        {"--cox.memory.mode=observe"},
        {"--cox.memory.force=*=recompute"},
        {"--cox.memory.budget=1GiB"},
        {"--cox.precision.format=auto", "--cox.precision.mode=observe"},
    };
    const std::uint64_t loops = loops_to_try();
    for (std::uint64_t seed = 1; seed <= loops; ++seed) {
      const Tensors plain = trained(seed, [](nn::Module&) {});
      const Flags& flags = modes[seed % modes.size()];
      const Tensors found = trained_adopted(seed, flags);
      CAPTURE(seed);
      CAPTURE(flags);
      REQUIRE(found.size() == plain.size());
      std::size_t unlike = 0;
      for (std::size_t i = 0; i < plain.size(); ++i)
        unlike += sdk_test::same_bits(found[i], plain[i]) ? 0 : 1;
      CHECK(unlike == 0);
    }
  }
}
