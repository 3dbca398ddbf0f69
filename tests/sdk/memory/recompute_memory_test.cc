#include "recompute_support.h"
#include "sdk/src/memory/counting_allocator.h"

#include <doctest/doctest.h>

namespace {

using namespace memory_test;
using cox::detail::counted_memory;

struct WideImpl : torch::nn::Module {
  WideImpl() : linear(register_module("linear", torch::nn::Linear(64, 64))) {}
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = torch::dropout(torch::gelu(linear->forward(y)), 0.1, true);
    return x + y;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Wide);

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 8; ++i) {
      blocks.emplace_back(register_module("h" + std::to_string(i), Wide()));
    }
  }
  Tensor forward(Tensor x) {
    for (const auto& block : blocks) x = cox::run(block, &WideImpl::forward, x);
    return x;
  }
  std::vector<cox::Block<Wide>> blocks;
};
TORCH_MODULE(Deep);

struct Counts {
  std::int64_t kept = 0;  // by the forward pass
  std::int64_t peak = 0;
  std::int64_t left = 0;  // when the graph is gone
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts count_step(Deep& net, const Tensor& x) {
  net->zero_grad(false);
  const std::int64_t base = counted_memory().live_bytes;
  cox::detail::reset_counted_peak();
  Counts counts;
  {
    const Tensor loss = loss_of(net->forward(x));
    counts.kept = counted_memory().live_bytes - base;
    loss.backward();
  }
  counts.peak = counted_memory().peak_bytes - base;
  counts.left = counted_memory().live_bytes - base;
  return counts;
}

Counts second_step(const Plan& plan) {
  torch::manual_seed(1);
  Deep net;
  BlockRegistry registry = *BlockRegistry::discover(*net);
  steer(registry, plan);
  const Tensor x = torch::ones({32, 64});
  (void)count_step(net, x);  // its checks hold everything
  CHECK(registry.pinned().empty());
  return count_step(net, x);
}

}  // namespace

TEST_SUITE("sdk.memory.recompute_memory") {
  TEST_CASE("recompute keeps a fraction of what keep keeps, and its peak is lower") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    const Counts kept = second_step({kKeep});
    const Counts half = second_step({kKeep, kRecompute});
    const Counts none = second_step({kRecompute});
    MESSAGE("bytes kept " << kept.kept << ", " << half.kept << ", " << none.kept << "; peaks "
                          << kept.peak << ", " << half.peak << ", " << none.peak);
    CHECK(none.kept * 4 < kept.kept);
    CHECK(half.kept * 4 < kept.kept * 3);
    CHECK(none.peak * 2 < kept.peak);
    CHECK(half.peak < kept.peak);
    CHECK(kept.left == 0);
    CHECK(half.left == 0);
    CHECK(none.left == 0);
    for (int repeat = 0; repeat < 10; ++repeat) CHECK(second_step({kRecompute}) == none);
  }

  TEST_CASE("a thousand steps keep no memory, with graphs that are dropped and used twice") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    for (const Plan& plan : {Plan{kRecompute}, Plan{kTile, kRecompute}}) {
      blocks_test::GptNet net(1);
      TileNet tiles;
      BlockRegistry registry = *BlockRegistry::discover(*net);
      BlockRegistry tiled = *BlockRegistry::discover(*tiles);
      steer(registry, plan);
      steer(tiled, plan);
      const Tensor ids = net->example();
      const auto steps = [&](int count) {
        for (int i = 0; i < count; ++i) {
          loss_of(net->forward(ids, Calls::through_run)).backward();
          (void)net->forward(ids, Calls::through_run);
          const Tensor twice = tiles->loss();
          if (i % 8 == 0) twice.backward({}, true);
          twice.backward();
          net->zero_grad();
          tiles->zero_grad();
        }
      };
      steps(10);
      const std::int64_t before = counted_memory().live_bytes;
      steps(1000);
      CHECK(counted_memory().live_bytes == before);
    }
  }
}
