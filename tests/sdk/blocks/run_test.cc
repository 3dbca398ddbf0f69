#include "coxswain/run.h"

#include "coxswain/error.h"
#include "support.h"

#include <doctest/doctest.h>

namespace {

using namespace blocks_test;

enum class Watching { nobody, off, times, full };

// Two steps of forward, backward and update from a fixed seed: outputs, gradients, parameters,
// buffers and the state of the generator.
template <class Net>
std::vector<Tensor> train(Calls how, Watching watching) {
  torch::manual_seed(7);
  Net net;
  auto registry = BlockRegistry::discover(*net);
  REQUIRE(registry.ok());
  KeepingSink sink;
  if (watching != Watching::nobody) REQUIRE(registry->attach(sink).ok());
  if (watching == Watching::times) REQUIRE(registry->measure(MeasureMode::times).ok());
  if (watching == Watching::full) REQUIRE(registry->measure(MeasureMode::full).ok());
  std::vector<Tensor> seen;
  for (int step = 0; step < 2; ++step) {
    const Tensor out = net->forward(net->example(), how);
    net->zero_grad();
    out.pow(2).sum().backward();
    seen.push_back(out.detach().clone());
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : net->parameters()) {
      seen.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.01);
    }
  }
  for (const Tensor& parameter : net->parameters()) seen.push_back(parameter);
  for (const Tensor& buffer : net->buffers()) seen.push_back(buffer);
  seen.push_back(at::detail::getDefaultCPUGenerator().get_state());
  const std::size_t reports = watching >= Watching::times ? 2 * registry->size() : 0;
  CHECK(sink.reports.size() == reports);
  return seen;
}

template <class Net>
void check_all_ways_agree() {
  const std::vector<Tensor> expected = train<Net>(Calls::direct, Watching::nobody);
  for (const Watching watching :
       {Watching::nobody, Watching::off, Watching::times, Watching::full}) {
    CAPTURE(static_cast<int>(watching));
    CHECK(same_bits(expected, train<Net>(Calls::through_run, watching)));
  }
}

struct AnyLayerImpl : torch::nn::Module {
  AnyLayerImpl() : weight(register_parameter("weight", torch::ones({2}))) {}
  Tensor scale(const Tensor& x) { return x * weight; }
  Tensor weight;
};
TORCH_MODULE(AnyLayer);

Tensor negate(AnyLayerImpl&, const Tensor& x) {
  return -x;
}

// A module with one block, watched in the mode under test.
struct Watched {
  explicit Watched(MeasureMode mode) : block(owner.register_module("layer", AnyLayer())) {
    auto found = BlockRegistry::discover(owner);
    REQUIRE(found.ok());
    registry = std::make_unique<BlockRegistry>(*std::move(found));
    REQUIRE(registry->attach(sink).ok());
    REQUIRE(registry->measure(mode).ok());
  }
  torch::nn::Module owner;
  cox::Block<AnyLayer> block;
  KeepingSink sink;
  std::unique_ptr<BlockRegistry> registry;
};

template <class Test>
void in_each_mode(const Test& test) {
  for (const MeasureMode mode : {MeasureMode::off, MeasureMode::times, MeasureMode::full}) {
    CAPTURE(static_cast<int>(mode));
    Watched watched(mode);
    test(watched.block);
  }
}

}  // namespace

TEST_SUITE("sdk.blocks.run") {
  TEST_CASE("a transformer gives the same bits through run, dropout included") {
    check_all_ways_agree<GptNet>();
  }
  TEST_CASE("an MLP with batch norm gives the same bits and buffers through run") {
    check_all_ways_agree<MlpNet>();
  }
  TEST_CASE("convolutions with in-place activations give the same bits through run") {
    check_all_ways_agree<ConvNet>();
  }

  TEST_CASE("passes each kind of argument and returns what the function returns") {
    in_each_mode([](const cox::Block<AnyLayer>& block) {
      const Tensor x = torch::tensor({3.0, 5.0});
      const Tensor one = cox::run(block, &AnyLayerImpl::scale, x);
      CHECK(torch::equal(one, x));
      CHECK(torch::equal(cox::run(block, negate, x), -x));
      CHECK(torch::equal(cox::run(block, &negate, x), -x));

      using Pair = std::tuple<Tensor, std::optional<Tensor>>;
      const auto split = [](AnyLayer layer, const Pair& in, const std::vector<Tensor>& more,
                            int factor, const std::string& word) {
        const auto& [a, b] = in;
        Tensor sum = a * layer->weight * factor + static_cast<double>(word.size());
        if (b) sum = sum + *b;
        return std::tuple<std::vector<Tensor>, std::optional<Tensor>>({sum, more.at(0)}, b);
      };
      const auto [full_out, full] =
          cox::run(block, split, Pair(x, x), std::vector<Tensor>{x}, 2, std::string("abc"));
      CHECK(torch::equal(full_out.at(0), x * 3 + 3));
      CHECK(full_out.at(1).is_same(x));
      CHECK(full.has_value());
      const auto [empty_out, empty] =
          cox::run(block, split, Pair(x, std::nullopt), std::vector<Tensor>{x}, 2, "ab");
      CHECK(torch::equal(empty_out.at(0), x * 2 + 2));
      CHECK_FALSE(empty.has_value());
    });
  }

  TEST_CASE("runs an owned function with its captures, and one without inputs") {
    in_each_mode([](const cox::Block<AnyLayer>& block) {
      const double factor = 4;
      const auto scaled =
          cox::owned([factor](AnyLayerImpl& layer) { return layer.weight * factor; });
      CHECK(torch::equal(cox::run(block, scaled), torch::full({2}, 4.0)));
    });
  }

  TEST_CASE("an undefined tensor is a valid input and output") {
    in_each_mode([](const cox::Block<AnyLayer>& block) {
      const auto same = [](AnyLayerImpl&, const Tensor& x) { return x; };
      CHECK_FALSE(cox::run(block, same, Tensor()).defined());
    });
  }

  TEST_CASE("works without gradients, in inference mode and in autocast") {
    in_each_mode([](const cox::Block<AnyLayer>& block) {
      const Tensor x = torch::tensor({3.0, 5.0});
      {
        torch::NoGradGuard no_grad;
        CHECK_FALSE(cox::run(block, &AnyLayerImpl::scale, x).requires_grad());
      }
      {
        c10::InferenceMode inference;
        CHECK(cox::run(block, &AnyLayerImpl::scale, x).is_inference());
      }
      CHECK(cox::run(block, &AnyLayerImpl::scale, x).requires_grad());
    });
  }

  TEST_CASE("an exception of the function passes through and leaves nothing behind") {
    for (const MeasureMode mode : {MeasureMode::off, MeasureMode::times, MeasureMode::full}) {
      Watched watched(mode);
      const auto fail = [](AnyLayerImpl& layer, const Tensor& x) -> Tensor {
        throw std::out_of_range("of " + std::to_string(layer.scale(x).numel()));
      };
      const Tensor x = torch::ones({2}).requires_grad_() * 2;
      CHECK_THROWS_WITH_AS((void)cox::run(watched.block, fail, x), "of 2", std::out_of_range);
      CHECK(cox::detail::innermost_block_call() == nullptr);
      CHECK(watched.sink.reports.empty());
      // Saved outside of any block: not ours to check, so autograd's own message.
      Tensor y = x.exp();
      y.add_(1);
      CHECK_THROWS_AS(y.sum().backward(), c10::Error);
    }
  }

  TEST_CASE("an empty block is refused with a message") {
    const cox::Block<AnyLayer> empty(nullptr);
    CHECK_FALSE(static_cast<bool>(empty));
    CHECK_THROWS_AS((void)cox::run(empty, &AnyLayerImpl::scale, torch::ones({2})), cox::Error);
  }
}
