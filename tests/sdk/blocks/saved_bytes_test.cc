#include <malloc.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "coxswain/error.h"
#include "sdk/src/stream/saved_tensors.h"
#include "support.h"

#include <doctest/doctest.h>

namespace {

using namespace blocks_test;

struct LayersImpl : torch::nn::Module {
  LayersImpl()
      : linear(register_module("linear", torch::nn::Linear(4, 6))),
        norm(register_module("norm", torch::nn::BatchNorm1d(6))) {}
  Tensor linear_gelu(const Tensor& x) { return torch::gelu(linear->forward(x)); }
  Tensor normed(const Tensor& x) { return norm->forward(x); }
  Tensor product(const Tensor& x) { return x * x.exp(); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Layers);

struct Watch {
  Watch()
      : block(model.register_module("layer", Layers())), registry(*BlockRegistry::discover(model)) {
    REQUIRE(registry.attach(sink).ok());
    REQUIRE(registry.measure(MeasureMode::full).ok());
  }
  std::uint64_t saved_by_next() {
    REQUIRE(sink.reports.size() == 1);
    const std::uint64_t bytes = sink.reports[0].measured.saved_bytes;
    sink.reports.clear();
    return bytes;
  }
  torch::nn::Module model;
  cox::Block<Layers> block;
  KeepingSink sink;
  BlockRegistry registry;
};

Tensor middle(std::vector<std::int64_t> sizes) {
  return torch::ones(sizes).requires_grad_() * 1;
}

}  // namespace

TEST_SUITE("sdk.blocks.saved_bytes") {
  TEST_CASE("saved bytes of Linear and GELU are its input and the activation between them") {
    Watch watch;
    cox::run(watch.block, &LayersImpl::linear_gelu, middle({3, 4})).sum().backward();
    CHECK(watch.saved_by_next() == 3 * 4 * 4 + 3 * 6 * 4);
    cox::run(watch.block, &LayersImpl::linear_gelu, middle({2, 3, 4})).sum().backward();
    CHECK(watch.saved_by_next() == 6 * 4 * 4 + 6 * 6 * 4);
  }

  TEST_CASE("parameters of other modules and buffers do not count as saved") {
    Watch watch;
    const Tensor foreign = torch::ones({6, 4}).requires_grad_();
    const auto tied = [](LayersImpl& layer, const Tensor& x, const Tensor& weight) {
      return layer.normed(torch::linear(x, weight));
    };
    cox::run(watch.block, tied, middle({3, 4}), foreign).sum().backward();
    const std::uint64_t statistics = 2 * 6 * 4;  // mean and inverse deviation of the batch
    CHECK(watch.saved_by_next() == 3 * 4 * 4 + 3 * 6 * 4 + statistics);
  }

  TEST_CASE("nothing is saved without gradients, and nothing is counted outside of blocks") {
    Watch watch;
    {
      torch::NoGradGuard no_grad;
      (void)cox::run(watch.block, &LayersImpl::linear_gelu, torch::ones({3, 4}));
    }
    CHECK(watch.saved_by_next() == 0);
    const Tensor before = middle({9, 4}).exp();
    cox::run(watch.block, &LayersImpl::linear_gelu, before).exp().sum().backward();
    CHECK(watch.saved_by_next() == 9 * 4 * 4 + 9 * 6 * 4);
  }

  TEST_CASE("an in-place change of a saved tensor is an error that names the block") {
    Watch watch;
    Tensor x = middle({2, 2});
    const Tensor out = cox::run(watch.block, &LayersImpl::product, x);
    x.detach().add_(1);
    std::string message;
    try {
      out.sum().backward();
    } catch (const cox::Error& error) {
      message = error.what();
    }
    CHECK(message.find("block layer") != std::string::npos);
    CHECK(message.find("changed in place") != std::string::npos);
  }

  TEST_CASE("gradients of gradients are the same bits as without hooks") {
    const auto second_order = [](bool through_run) {
      Watch watch;
      const Tensor x = torch::linspace(-1, 1, 4).view({2, 2}).requires_grad_();
      const Tensor y =
          through_run ? cox::run(watch.block, &LayersImpl::product, x) : watch.block->product(x);
      const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
    };
    CHECK(torch::equal(second_order(true), second_order(false)));
  }

  TEST_CASE("our engine is installed once and stays in force") {
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    const auto* engine = &torch::autograd::Engine::get_default_engine();
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    CHECK(&torch::autograd::Engine::get_default_engine() == engine);
  }

  TEST_CASE("another engine is left alone, and only times are measured then") {
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    struct OtherEngine : torch::autograd::Engine {
      ~OtherEngine() override { stop(); }
    };
    static OtherEngine other;
    auto& ours = torch::autograd::Engine::get_default_engine();
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return other; });
    CHECK(cox::detail::install_saved_tensor_engine().code() ==
          cox::StatusCode::failed_precondition);
    KeepingSink sink;
    GptNet net;
    auto registry = BlockRegistry::discover(*net);
    REQUIRE(registry->attach(sink).ok());
    CHECK_FALSE(registry->measure(MeasureMode::full).ok());
    net->forward(net->example(), Calls::through_run).sum().backward();
    CHECK(sink.reports.at(0).measured.mode == MeasureMode::times);
    static auto* restore = &ours;
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *restore; });
  }

  TEST_CASE("a thousand steps in each mode keep no memory") {
    for (const MeasureMode mode : {MeasureMode::off, MeasureMode::times, MeasureMode::full}) {
      CAPTURE(static_cast<int>(mode));
      GptNet net(1);
      KeepingSink sink;
      auto registry = BlockRegistry::discover(*net);
      REQUIRE(registry->attach(sink).ok());
      REQUIRE(registry->measure(mode).ok());
      const Tensor ids = net->example();
      const Tensor leaf = torch::ones({2, 5, 8});
      const auto steps = [&](int count) {
        for (int i = 0; i < count; ++i) {
          net->forward(ids, Calls::through_run).sum().backward();
          call(Calls::through_run, net->blocks[0], leaf).sum().backward();
          (void)net->forward(ids, Calls::through_run);
          net->zero_grad();
          sink.reports.clear();
        }
      };
      steps(200);
      // malloc settles at some time by some thousand bytes; what leaks grows in every part.
      constexpr int kPart = 400;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (int part = 0; part < 3; ++part) {
        const auto before = static_cast<std::int64_t>(mallinfo2().uordblks);
        steps(kPart);
        least = std::min(least, static_cast<std::int64_t>(mallinfo2().uordblks) - before);
      }
      CHECK(least < 8 * kPart);  // bytes
    }
  }
}
