// Tiles within the regions of blocks.
#include "sdk/src/blocks/steered_region.h"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "coxswain/tile.h"
#include "tests/sdk/blocks/watched_net.h"

#include <doctest/doctest.h>

using namespace visits_test;

TEST_SUITE("sdk.blocks.tiles") {
  // The gradients of a net whose second block computes in tiles with dropout inside.
  struct Tiled {
    std::vector<Tensor> tensors;
    std::uint64_t saved_bytes = 0;  // saved by the tiled block
    bool has_tiles = false;
  };
  Tiled tiled(MemoryAction action, bool pinned = false) {
    Net net;
    Watched watched(*net, MeasureMode::off);
    watched.visits.parts().steering.set_action(BlockId(1), action);
    if (pinned) watched.visits.parts().steering.pin(BlockId(1), "for the test");
    torch::manual_seed(4);
    const Tensor x = net->a(net->middle(8));
    const Tensor y = cox::tile(
        [&](const Tensor& rows) {
          return torch::dropout(torch::tanh(net->b(rows)).exp(), 0.3, true);
        },
        x, 0, 3);
    Tiled seen;
    seen.has_tiles = watched.visits.parts().region.has_tiles();
    y.pow(2).sum().backward();
    for (const Tensor& p : net->parameters()) seen.tensors.push_back(p.grad().clone());
    seen.tensors.push_back(y.detach());
    return seen;
  }

  TEST_CASE("tiles are dropped and made again where the plan says so, and no bit changes") {
    const Tiled kept = tiled(MemoryAction::keep);
    CHECK(kept.has_tiles);
    for (const MemoryAction action : {MemoryAction::tile, MemoryAction::recompute}) {
      const Tiled other = tiled(action);
      for (std::size_t i = 0; i < kept.tensors.size(); ++i)
        CHECK(torch::equal(kept.tensors[i], other.tensors[i]));
    }
    const Tiled pinned = tiled(MemoryAction::tile, true);
    for (std::size_t i = 0; i < kept.tensors.size(); ++i)
      CHECK(torch::equal(kept.tensors[i], pinned.tensors[i]));
  }

  TEST_CASE("a tile may go over from one block to the next, and throw") {
    const auto gradients = [](MemoryAction action) {
      Net net;
      Watched watched(*net, MeasureMode::times);
      for (int b = 0; b < 2; ++b)
        watched.visits.parts().steering.set_action(BlockId(static_cast<BlockId::rep>(b)), action);
      const Tensor x = net->a(net->middle(6));
      CHECK_THROWS(static_cast<void>(cox::tile(
          [&](const Tensor& rows) {
            return net->a(rows).view({5, 5});
          },
          x, 0, 2)));
      const Tensor y = cox::tile(
          [&](const Tensor& rows) { return net->b(torch::tanh(net->a(rows)).exp()).exp(); }, x, 0,
          2);
      y.sum().backward();
      std::vector<Tensor> all;
      for (const Tensor& p : net->parameters()) all.push_back(p.grad().clone());
      return all;
    };
    const auto kept = gradients(MemoryAction::keep);
    for (const MemoryAction action : {MemoryAction::tile, MemoryAction::recompute}) {
      const auto other = gradients(action);
      for (std::size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], other[i]));
    }
  }
}
