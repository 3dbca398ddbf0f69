// Scopes: what they turn on and put back, whole models inside of them, running again.
#include "sdk/src/precision/fp8_scope.h"

#include <thread>

#include "fp8_support.h"
#include "tests/sdk/memory/recompute_support.h"

#include <doctest/doctest.h>

namespace {

using namespace fp8_test;
using memory_test::Plan;

constexpr cox::MemoryAction kKeep = cox::MemoryAction::keep;
constexpr cox::MemoryAction kRecompute = cox::MemoryAction::recompute;
constexpr cox::MemoryAction kTile = cox::MemoryAction::tile;

// GPT-2 with dropout trains with its blocks in FP8. Everything that it computes, and the counts.
struct Trained {
  std::vector<Tensor> tensors;
  std::vector<Fp8Counts> counts;
  std::vector<double> state;
};

template <class Net>
class Fp8Training {
 public:
  explicit Fp8Training(const Plan& plan, const Fp8Recipe& recipe)
      : registry_(*memory_test::BlockRegistry::discover(*net_)), block_(block_of(recipe)) {
    memory_test::steer(registry_, plan);
  }

  void step() {
    Tensor loss;
    {
      const cox::PrecisionScope cast(at::kCPU, cox::Precision::bf16);
      const Fp8Scope scope(block_);
      loss = memory_test::loss_of(net_->forward(net_->example(), blocks_test::Calls::through_run));
    }
    net_->zero_grad();
    loss.backward();
    trained_.tensors.push_back(loss.detach().clone());
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net_->parameters()) {
      if (!parameter.grad().defined()) continue;
      trained_.tensors.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.05);
    }
    trained_.counts.push_back(block_->take_counts());
    block_->end_step();
  }

  Trained& trained() {
    trained_.state = block_->state();
    CHECK(registry_.pinned().empty());
    return trained_;
  }
  Fp8Block& block() { return *block_; }

 private:
  struct Seed {
    Seed() { torch::manual_seed(7); }
  } seed_;
  Net net_;
  memory_test::BlockRegistry registry_;
  std::shared_ptr<Fp8Block> block_;
  Trained trained_;
};

template <class Net>
Trained train(const Plan& plan, const Fp8Recipe& recipe, int steps = 3) {
  Fp8Training<Net> training(plan, recipe);
  for (int step = 0; step < steps; ++step) training.step();
  return training.trained();
}

void check_same(const Trained& a, const Trained& b) {
  CHECK(blocks_test::same_bits(a.tensors, b.tensors));
  CHECK((a.counts == b.counts));
  CHECK((a.state == b.state));
}

template <class Net>
void check_plans() {
  for (const Fp8Recipe& recipe : recipes()) {
    CAPTURE(static_cast<int>(recipe.scaling));
    CAPTURE(static_cast<int>(recipe.granularity));
    const Trained kept = train<Net>({kKeep}, recipe);
    CHECK(kept.counts.back().sampled > 0);
    check_same(kept, train<Net>({kRecompute}, recipe));
    check_same(kept, train<Net>({kTile, kRecompute, kKeep}, recipe));
  }
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_scope") {
  TEST_CASE("scopes nest, a null block turns FP8 off inside, and all is put back") {
    torch::nn::Linear layer(4, 3);
    const Tensor x = at::randn({2, 4});
    const auto outer = block_of();
    const auto inner = block_of();
    CHECK_FALSE(key_is_on());
    CHECK(current_fp8() == nullptr);
    CHECK_FALSE(capture_fp8().has_value());
    {
      const Fp8Scope first(outer);
      CHECK(key_is_on());
      layer->forward(x);
      {
        const Fp8Scope second(inner);
        layer->forward(x);
        const Fp8Scope off(std::shared_ptr<Fp8Block>{});
        CHECK_FALSE(key_is_on());
        layer->forward(x);
      }
      CHECK(key_is_on());
      layer->forward(x);
    }
    CHECK_FALSE(key_is_on());
    CHECK(outer->take_counts().sampled == 16);
    CHECK(inner->take_counts().sampled == 8);
    CHECK(quantized_in([&] {}) == 0);
  }

  TEST_CASE("an exception leaves dispatch as it was before the scope") {
    const auto was = c10::impl::tls_local_dispatch_key_set();
    const auto fail = [] {
      const Fp8Scope outer(block_of());
      const Fp8Scope inner(block_of());
      at::mm(at::randn({2, 3}), at::randn({4, 5}).requires_grad_());
    };
    CHECK_THROWS(fail());
    const auto is = c10::impl::tls_local_dispatch_key_set();
    CHECK((is.included_ == was.included_));
    CHECK((is.excluded_ == was.excluded_));
    CHECK(current_fp8() == nullptr);
  }

  TEST_CASE("another thread is not in the scope of this one") {
    torch::nn::Linear layer(4, 3);
    const Tensor x = at::randn({2, 4});
    const Tensor plain = layer->forward(x);
    CHECK(quantized_in([&] {
            std::thread([&] { CHECK(at::equal(layer->forward(x), plain)); }).join();
          }) == 0);
  }

  TEST_CASE("a weight that is used twice collects the gradients of both products") {
    at::manual_seed(4);
    torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
    const Tensor x = at::randn({2, 4});
    const auto block = block_of();
    Tensor middle;
    Tensor y;
    {
      const Fp8Scope scope(block);
      middle = layer->forward(x);
      y = layer->forward(middle);
    }
    middle.retain_grad();
    const Tensor gradient = at::randn({2, 4});
    y.backward(gradient);
    const Tensor w = layer->weight.detach();
    const Expected second = expected(middle.detach(), w, gradient, {});
    const Expected first = expected(x, w, middle.grad(), {});
    CHECK(is_near(layer->weight.grad(), first.of_w + second.of_w));
    CHECK(block->take_counts().sampled == 4 * 8);
  }

  TEST_CASE("a weight that is also an embedding gets gradients from both") {
    at::manual_seed(4);
    const Tensor table = at::randn({7, 4}).requires_grad_();
    const Tensor tokens = at::arange(5).to(at::kLong);
    Tensor logits;
    CHECK(quantized_in(
              [&] { logits = at::linear(at::tanh(at::embedding(table, tokens)), table); }) == 20);
    CHECK(is_near(logits.detach(), at::mm(at::tanh(table.slice(0, 0, 5)), table.t()).detach(), 3));
    logits.sum().backward();
    CHECK((table.grad().abs().sum(1) > 0).all().item<bool>());
  }

  TEST_CASE("an encoder layer runs its four Linears in FP8 and leaves attention alone") {
    at::manual_seed(8);
    const std::int64_t sequence = 5, batch = 3, width = 16, wide = 32;
    torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(width, 4).dim_feedforward(wide).dropout(0));
    const Tensor x = at::randn({sequence, batch, width});
    const Tensor plain = layer->forward(x);
    const auto block = block_of();
    Tensor y;
    {
      const Fp8Scope scope(block);
      y = layer->forward(x);
    }
    const auto rows = static_cast<std::uint64_t>(sequence * batch);
    CHECK(block->take_counts().sampled == rows * (3 * width + wide));
    CHECK_FALSE(at::equal(y, plain));
    CHECK(is_near(y.detach(), plain.detach(), 3));
    y.pow(2).sum().backward();
    CHECK(block->take_counts().sampled == rows * (3 * width + 2 * width + wide));
    for (const Tensor& parameter : layer->parameters()) {
      CHECK(at::isfinite(parameter.grad()).all().item<bool>());
    }
  }

  TEST_CASE("gradients of gradients are refused with a message that says what to do") {
    torch::nn::Linear layer(4, 3);
    Tensor y;
    {
      const Fp8Scope scope(block_of());
      y = layer->forward(at::randn({2, 4}));
    }
    const std::vector<Tensor> of = {layer->weight};
    CHECK_THROWS_WITH(torch::autograd::grad({y.pow(2).sum()}, of, {}, true, true),
                      doctest::Contains("gradients of gradients"));
    CHECK(torch::autograd::grad({y.pow(2).sum()}, of)[0].defined());
  }

  TEST_CASE("backward on other threads counts every product once") {
    const auto block = block_of({Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&block] {
        torch::nn::Linear layer(8, 8);
        for (int step = 0; step < 20; ++step) {
          Tensor y;
          {
            const Fp8Scope scope(block);
            y = layer->forward(at::ones({2, 8}));
          }
          std::thread([&y] { y.sum().backward(); }).join();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(block->take_counts().sampled == 4 * 20 * 32);
  }

  TEST_CASE("blocks of a transformer that are run again keep every bit, and count once") {
    check_plans<blocks_test::GptNet>();
  }
  TEST_CASE("blocks of an MLP with batch norm that are run again keep every bit") {
    check_plans<blocks_test::MlpNet>();
  }

  TEST_CASE("a call inside a call that runs again runs again, with the scales of the first time") {
    torch::nn::Linear layer(4, 4);
    const Tensor x = at::randn({2, 4});
    const Fp8Recipe delayed{Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0};
    const auto outer = block_of(delayed);
    const auto inner = block_of(delayed);
    const auto forward = [&] {
      const Tensor y = layer->forward(x * 1);
      const Fp8Scope scope(inner);
      return layer->forward(y) + layer->forward(x);
    };
    const Fp8Scope call(outer);
    const std::optional<Fp8Place> place = capture_fp8();
    const Tensor first = forward();
    const Fp8Counts seen_outer = outer->take_counts();
    CHECK(inner->take_counts().sampled == 16);
    CHECK(seen_outer.sampled == 8);
    outer->end_step();
    inner->end_step();
    for (int again = 0; again < 2; ++again) {
      const Fp8Scope scope(place);
      CHECK(at::equal(forward(), first));
    }
    CHECK(outer->take_counts() == Fp8Counts{});
    CHECK(inner->take_counts() == Fp8Counts{});
    const auto too_many = [&] {
      const Fp8Scope scope(place);
      forward();
      layer->forward(x);
    };
    CHECK_THROWS_WITH(too_many(), doctest::Contains("must compute the same each time"));
  }

  TEST_CASE("delayed scaling that is saved and loaded goes on bit for bit") {
    const Fp8Recipe recipe{Fp8Scaling::delayed, Fp8Granularity::tensor, 4, 0};
    Fp8Training<blocks_test::GptNet> whole({kKeep}, recipe);
    Fp8Training<blocks_test::GptNet> parts({kKeep}, recipe);
    const auto steps = [](auto& training, int count) {
      torch::manual_seed(21);
      for (int step = 0; step < count; ++step) training.step();
    };
    steps(whole, 3);
    steps(parts, 3);
    const std::vector<double> state = parts.block().state();
    REQUIRE(parts.block().load_state(block_of(recipe)->state()).ok());  // forgets
    CHECK((parts.block().state() != state));
    REQUIRE(parts.block().load_state(state).ok());
    steps(whole, 3);
    steps(parts, 3);
    check_same(whole.trained(), parts.trained());
    const auto other = block_of({Fp8Scaling::delayed, Fp8Granularity::tensor, 5, 0});
    CHECK_FALSE(other->load_state(state).ok());
    CHECK_FALSE(block_of(recipe)->load_state(std::vector<double>{}).ok());
    CHECK_FALSE(block_of(recipe)->load_state(std::span(state).first(state.size() - 1)).ok());
  }

  TEST_CASE("delayed scaling takes the scale of the steps before, and current that of now") {
    torch::nn::Linear layer(4, 3);
    for (const bool delayed : {true, false}) {
      const auto block = block_of(
          {delayed ? Fp8Scaling::delayed : Fp8Scaling::current, Fp8Granularity::tensor, 2, 0});
      const auto saturated_of = [&](double size) {
        {
          const Fp8Scope scope(block);
          layer->forward(at::full({2, 4}, size));
        }
        const std::uint64_t saturated = block->take_counts().saturated;
        block->end_step();
        return saturated;
      };
      CHECK(saturated_of(1) == 0);
      CHECK(saturated_of(100) == (delayed ? 8 : 0));
      CHECK(saturated_of(100) == 0);
      CHECK(saturated_of(200) == 0);  // the margin has grown by a bit
    }
  }
}
