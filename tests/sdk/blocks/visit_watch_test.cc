// Visits of blocks during a forward pass: scopes, regions, engines and release.
#include "sdk/src/blocks/visit_watch.h"

#include <malloc.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "coxswain/block.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/stream/saved_tensors.h"
#include "tests/sdk/blocks/watched_net.h"

#include <doctest/doctest.h>

using namespace visits_test;

TEST_SUITE("sdk.blocks.visit_watch") {
  TEST_CASE(
      "in a scope everything is a visit of its block, and the block around it goes on after") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    watched.visits.add_block("scope", 0);
    watched.sink.reports.resize(3);
    const Tensor x = net->middle();
    Tensor y = net->a(x);
    {
      const auto scope = cox::block("scope");
      CHECK(watched.visits.current() == BlockId(2));
      y = net->b(y).sigmoid();  // saves y, another block's parameter and the result
    }
    CHECK(watched.visits.current() == BlockId(0));
    (y * y).sum().backward();
    CHECK(watched.sink.edges == "<0>0<2>2[2]2[0]0");
    watched.visits.end_step();
    CHECK_FALSE(watched.sink.reports[1]);
    REQUIRE(watched.sink.reports[2]);
    CHECK(watched.sink.reports[2]->forward > cox::Seconds(0));
    CHECK(watched.sink.reports[2]->backward > cox::Seconds(0));
    CHECK(watched.sink.reports[2]->saved_bytes == 2 * y.nbytes());
    CHECK(watched.sink.reports[2]->parameters == 0);
  }

  TEST_CASE("scopes nest, may come before the first parameter, and may name a block of the model") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    watched.visits.add_block("outer", 0);
    watched.visits.add_block("inner", 0);
    watched.sink.reports.resize(4);
    const auto current = [&] { return watched.visits.current(); };
    {
      const auto outer = cox::block("outer");
      CHECK(current() == std::nullopt);
      const Tensor x = net->a(net->middle());
      CHECK(current() == BlockId(2));
      {
        const auto inner = cox::block("inner");
        CHECK(current() == BlockId(3));
      }
      CHECK(current() == BlockId(2));
      x.sum().backward();
      CHECK(current() == std::nullopt);
      static_cast<void>(net->b(x));
      CHECK(current() == BlockId(2));
    }
    CHECK(current() == BlockId(2));  // stays until the next parameter
    static_cast<void>(net->b(net->middle()));
    CHECK(current() == BlockId(1));
    const auto named = cox::block("a");
    CHECK(current() == BlockId(0));
  }

  TEST_CASE("a scope is recomputed by its own action, with the bits of keeping everything") {
    Net net;
    Watched watched(*net, MeasureMode::off);
    watched.visits.add_block("scope", 0);
    const auto gradients = [&](MemoryAction action) {
      watched.visits.parts().steering.set_action(BlockId(2), action);
      net->zero_grad();
      Tensor y = net->a(net->middle());
      {
        const auto scope = cox::block("scope");
        y = (y.sigmoid() * net->b->gain).tanh();
      }
      const auto saved = watched.visits.current();
      net->b(y).sum().backward();
      CHECK(saved == BlockId(0));
      return std::vector<Tensor>{net->a->gain.grad().clone(), net->b->gain.grad().clone()};
    };
    const auto kept = gradients(MemoryAction::keep);
    CHECK(watched.visits.parts().region.replayed().count() == 0);
    const auto recomputed = gradients(MemoryAction::recompute);
    CHECK(watched.visits.parts().region.replayed().count() > 0);
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], recomputed[i]));
  }

  TEST_CASE(
      "a scope of an unknown name is an error that tells the nearest, and counts for nothing") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    const Tensor x = net->a(net->middle());
    CHECK_THROWS_WITH_AS(static_cast<void>(cox::block("aa")), doctest::Contains("nearest are a"),
                         cox::Error);
    CHECK(watched.visits.current() == BlockId(0));
    static_cast<void>(net->b(x));
    CHECK(watched.visits.current() == BlockId(1));
    const torch::NoGradGuard no_grad;
    static_cast<void>(cox::block("not looked at"));
  }

  TEST_CASE("regions are a chain forward and backward, also of a pass that begins again") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    const Tensor y = net->a(net->b(net->a(net->middle())));
    y.sum().backward();
    CHECK(watched.sink.edges == "<0>0<1>1<0>0[0]0[1]1[0]0");
    watched.sink.edges.clear();
    const Tensor one = net->b(net->a(net->middle())), other = net->b(net->a(net->middle()));
    (one + other).sum().backward();
    CHECK(watched.sink.edges == "<0>0<1>1<0>0<1>1[1]1[0]0[1]1[0]0");
    watched.visits.parts().clock.measure(MeasureMode::off);
    watched.sink.edges.clear();
    net->a(net->middle()).sum().backward();
    CHECK(watched.sink.edges.empty());
  }

  TEST_CASE("another use of the first block's parameter opens no region") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    (net->b(net->a(net->middle())) / net->a->gain).sum().backward();
    CHECK(watched.sink.edges == "<0>0<1>1[1]1[0]0");
  }

  TEST_CASE("a look at parameters whose bytes are gone is a pass of its own") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    watched.visits.parts().pass.count_with([] { return 1000; });
    const Tensor norm = net->a->gain.norm(), other = net->b->gain.norm();
    net->b(net->a(net->middle())).sum().backward();
    CHECK(watched.sink.edges == "<0>0<1>1<0>0<1>1[1]1[0]0");
  }

  TEST_CASE("gradients of gradients are the same bits as without hooks") {
    const auto second_order = [](std::optional<MemoryAction> action) {
      Net net;
      std::optional<Watched> watched;
      if (action) {
        watched.emplace(*net, MeasureMode::full);
        watched->visits.parts().steering.set_action(BlockId(0), *action);
      }
      const Tensor x = torch::linspace(-1, 1, 12).view({3, 4}).requires_grad_();
      const Tensor y = net->a(x).exp() * x;
      const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
    };
    const Tensor plain = second_order(std::nullopt);
    CHECK(torch::equal(second_order(MemoryAction::keep), plain));
    CHECK(torch::equal(second_order(MemoryAction::recompute), plain));
  }

  TEST_CASE("after release nothing is reported, also for graphs from before") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    const Tensor late = net->a(net->middle());
    watched.visits.release();
    late.sum().backward();
    watched.visits.end_step();
    CHECK_FALSE(watched.sink.reports[0]);
  }

  TEST_CASE("a graph keeps what counts or compares for it, also when all else has ended") {
    for (const MeasureMode mode : {MeasureMode::off, MeasureMode::full}) {
      CAPTURE(static_cast<int>(mode));
      Net net;
      std::weak_ptr<cox::detail::VisitListener> listener;
      Tensor y;
      {
        Watched watched(*net, mode);
        listener = watched.listener;
        cox::detail::VisitParts& parts = watched.visits.parts();
        parts.comparison.compare(cox::detail::BitsComparison::Comparing(mode == MeasureMode::off));
        parts.steering.set_action(BlockId(0), MemoryAction::recompute);
        y = net->a(net->middle()).exp();
        watched.visits.release();
      }
      CHECK_FALSE(listener.expired());
      y.sum().backward();
      y.reset();
      CHECK(listener.expired());
      CHECK(net->a->gain.grad().defined());
    }
  }

  TEST_CASE("another engine is left alone") {
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    auto& ours = torch::autograd::Engine::get_default_engine();
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    CHECK(&torch::autograd::Engine::get_default_engine() == &ours);
    struct OtherEngine : torch::autograd::Engine {
      ~OtherEngine() override { stop(); }
    };
    static OtherEngine other;
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return other; });
    CHECK(cox::detail::install_saved_tensor_engine().code() ==
          cox::StatusCode::failed_precondition);
    Net net;
    cox::detail::BlockWatch blocks;
    blocks.attach(*net);
    CHECK(blocks.size() == 0);
    static auto* restore = &ours;
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return *restore; });
  }

  TEST_CASE("a thousand steps in each mode keep no memory") {
    for (const MeasureMode mode : {MeasureMode::off, MeasureMode::times, MeasureMode::full}) {
      CAPTURE(static_cast<int>(mode));
      Net net;
      Watched watched(*net, mode);
      const auto steps = [&](int count) {
        for (int i = 0; i < count; ++i) {
          net->b(net->a(net->middle())).sum().backward();
          static_cast<void>(net->a(net->middle()));
          watched.visits.end_step();
          net->zero_grad();
        }
      };
      steps(200);
      // malloc grows by some thousand bytes before it settles; a leak grows in every part.
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
