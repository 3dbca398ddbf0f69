// Visits of blocks as they are told: times, bytes, edges, and tiles within them.
#include "sdk/src/blocks/visit_watch.h"

#include <malloc.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/block.h"
#include "coxswain/error.h"
#include "coxswain/tile.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

#include <doctest/doctest.h>

namespace {

using at::Tensor;
using cox::BlockId;
using cox::MemoryAction;
using cox::detail::BlockEdge;
using cox::detail::BlockMap;
using cox::detail::BlockMeasurement;
using cox::detail::MeasureMode;
using cox::detail::VisitWatch;

struct Sink final : cox::detail::BlockSink {
  void block_measured(BlockId block, const BlockMeasurement& measured) noexcept override {
    reports.at(block.value()) = measured;
  }
  void block_edge(BlockId block, BlockEdge edge) noexcept override {
    edges.push_back("<>[]"[static_cast<int>(edge)]);
    edges += std::to_string(block.value());
  }
  std::vector<std::optional<BlockMeasurement>> reports;
  std::string edges;  // "<0>0" forward, "[0]0" backward
};

// Advances by one each time it is read, so a duration counts the events inside of it.
cox::Nanoseconds counting_clock() {
  static std::int64_t reads = 0;
  return cox::Nanoseconds(++reads);
}

// A net of layers that multiply by a parameter, whose operators are shown to a VisitWatch.
class Watched final : public cox::detail::OperatorListener {
 public:
  Watched(torch::nn::Module& net, MeasureMode mode)
      : map_(*BlockMap::make(net, {})),
        visits(std::make_shared<VisitWatch>(sink, &counting_clock)) {
    if (!cox::detail::install_saved_tensor_engine().ok()) throw std::runtime_error("engine");
    for (std::size_t b = 0; b < map_.size(); ++b) {
      const BlockId block(static_cast<BlockId::rep>(b));
      visits->add_block(map_.name(block), map_.elements(block));
    }
    sink.reports.resize(map_.size());
    visits->measure(mode);
    saving_.emplace(*visits);
    stream_.emplace(std::vector<OperatorListener*>{this});
  }
  void touch(const c10::OperatorHandle&, const Tensor& argument) override {
    const c10::StorageImpl* storage = cox::detail::storage_impl(argument);
    if (!map_.owner(storage)) return visits->read_other(argument);
    visits->read_parameter(map_, 0, storage);
  }
  bool wants_calls() const override { return visits->wants_calls(); }
  void begin(const cox::detail::OperatorCall& call) override { visits->begin(call); }
  void end(std::span<const c10::IValue> results) override { visits->end(results); }
  void failed() noexcept override { visits->failed(); }
  void backward_begins(const cox::detail::BackwardPass&) override { visits->backward_begins(); }
  void backward_ended(cox::detail::BackwardKind) override { visits->backward_ended(); }

 private:
  const BlockMap map_;

 public:
  Sink sink;
  std::shared_ptr<VisitWatch> visits;

 private:
  std::optional<cox::detail::SavedTensorScope> saving_;
  std::optional<cox::detail::StreamScope> stream_;
};

struct GainImpl : torch::nn::Module {
  GainImpl() : gain(register_parameter("gain", torch::full({4}, 0.5))) {}
  Tensor forward(const Tensor& x) { return x * gain; }
  Tensor gain;
};
TORCH_MODULE(Gain);

struct NetImpl : torch::nn::Module {
  Gain a{register_module("a", Gain())};
  Gain b{register_module("b", Gain())};
  Tensor middle(std::int64_t rows = 3) const {
    return torch::linspace(-1, 1, 4 * rows).view({rows, 4}).requires_grad_() * 1;
  }
};
TORCH_MODULE(Net);

}  // namespace

TEST_SUITE("sdk.blocks.visit_watch") {
  TEST_CASE("a step's visits are reported when it ends, with both times, and only then") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    net->b(net->a(net->middle())).sum().backward();
    CHECK_FALSE(watched.sink.reports[0]);
    watched.visits->end_step();
    for (const auto& report : watched.sink.reports) {
      REQUIRE(report);
      CHECK(report->forward > cox::Seconds(0));
      CHECK(report->backward > cox::Seconds(0));
      CHECK(report->parameters == 4);
      CHECK(report->saved_bytes == 0);
    }
    watched.sink.reports.assign(2, std::nullopt);
    net->b(net->middle()).sum().backward();
    watched.visits->end_step();
    CHECK_FALSE(watched.sink.reports[0]);  // was not visited
    CHECK(watched.sink.reports[1]);
  }

  TEST_CASE(
      "in a scope everything is a visit of its block, and the block around it goes on after") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    watched.visits->add_block("scope", 0);
    watched.sink.reports.resize(3);
    const Tensor x = net->middle();
    Tensor y = net->a(x);
    {
      const auto scope = cox::block("scope");
      CHECK(watched.visits->current() == BlockId(2));
      y = net->b(y).sigmoid();  // saves y, a parameter of another block and the result
    }
    CHECK(watched.visits->current() == BlockId(0));
    (y * y).sum().backward();
    CHECK(watched.sink.edges == "<0>0<2>2[2]2[0]0");
    watched.visits->end_step();
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
    watched.visits->add_block("outer", 0);
    watched.visits->add_block("inner", 0);
    watched.sink.reports.resize(4);
    const auto current = [&] { return watched.visits->current(); };
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
    CHECK(current() == BlockId(2));  // until the next parameter
    static_cast<void>(net->b(net->middle()));
    CHECK(current() == BlockId(1));
    const auto named = cox::block("a");
    CHECK(current() == BlockId(0));
  }

  TEST_CASE("a scope is recomputed by its own action, with the bits of keeping everything") {
    Net net;
    Watched watched(*net, MeasureMode::off);
    watched.visits->add_block("scope", 0);
    const auto gradients = [&](MemoryAction action) {
      watched.visits->set_action(BlockId(2), action);
      net->zero_grad();
      Tensor y = net->a(net->middle());
      {
        const auto scope = cox::block("scope");
        y = (y.sigmoid() * net->b->gain).tanh();
      }
      const auto saved = watched.visits->current();
      net->b(y).sum().backward();
      CHECK(saved == BlockId(0));
      return std::vector<Tensor>{net->a->gain.grad().clone(), net->b->gain.grad().clone()};
    };
    const auto kept = gradients(MemoryAction::keep);
    CHECK(watched.visits->replayed().count() == 0);
    const auto recomputed = gradients(MemoryAction::recompute);
    CHECK(watched.visits->replayed().count() > 0);
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], recomputed[i]));
  }

  TEST_CASE(
      "a scope of an unknown name is an error that tells the nearest, and counts for nothing") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    const Tensor x = net->a(net->middle());
    CHECK_THROWS_WITH_AS(static_cast<void>(cox::block("aa")), doctest::Contains("nearest are a"),
                         cox::Error);
    CHECK(watched.visits->current() == BlockId(0));
    static_cast<void>(net->b(x));
    CHECK(watched.visits->current() == BlockId(1));
    const torch::NoGradGuard no_grad;
    static_cast<void>(cox::block("not looked at"));
  }

  TEST_CASE(
      "forward without backward has no backward time, and a step that is forgotten no report") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    static_cast<void>(net->a(net->middle()));
    watched.visits->end_step();
    CHECK(watched.sink.reports[0]->backward == cox::Seconds(0));
    watched.sink.reports.assign(2, std::nullopt);
    net->a(net->middle()).sum().backward();
    watched.visits->forget_step();
    watched.visits->end_step();
    CHECK_FALSE(watched.sink.reports[0]);
  }

  TEST_CASE("regions are a chain forward and backward, and a block that comes again opens none") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    const Tensor y = net->a(net->b(net->a(net->middle())));
    y.sum().backward();
    CHECK(watched.sink.edges == "<0>0<1>1[1]1[0]0");
    watched.visits->measure(MeasureMode::off);
    watched.sink.edges.clear();
    net->a(net->middle()).sum().backward();
    CHECK(watched.sink.edges.empty());
  }

  TEST_CASE("saved bytes count each storage once, in the block that saves it first") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    Tensor x = net->middle();
    Tensor y = net->a(x).exp();  // saves x, and the result of exp
    net->b(y).sum().backward();  // saves that result again
    watched.visits->end_step();
    CHECK(watched.sink.reports[0]->saved_bytes == 2 * 3 * 4 * 4);
    CHECK(watched.sink.reports[1]->saved_bytes == 0);
  }

  TEST_CASE("shapes have a key, which is the same for the same shapes") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    const auto key = [&](std::int64_t rows) {
      net->a(net->middle(rows)).sum().backward();
      watched.visits->end_step();
      return watched.sink.reports[0]->shape_key;
    };
    const std::uint64_t three = key(3);
    CHECK(key(3) == three);
    CHECK(key(5) != three);
  }

  TEST_CASE("an in-place change of a saved tensor is an error while its hook is ours") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    const Tensor x = net->middle();
    const Tensor y = net->a(x);
    x.detach().add_(1);
    CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("changed in place"), cox::Error);
  }

  TEST_CASE("gradients of gradients are the same bits as without hooks") {
    const auto second_order = [](std::optional<MemoryAction> action) {
      Net net;
      std::optional<Watched> watched;
      if (action) {
        watched.emplace(*net, MeasureMode::full);
        watched->visits->set_action(BlockId(0), *action);
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
    watched.visits->release();
    late.sum().backward();
    watched.visits->end_step();
    CHECK_FALSE(watched.sink.reports[0]);
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
          watched.visits->end_step();
          net->zero_grad();
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

TEST_SUITE("sdk.blocks.tiles") {
  // The gradients of a net whose second block computes in tiles, with dropout inside of them.
  struct Tiled {
    std::vector<Tensor> tensors;
    std::uint64_t saved_bytes = 0;  // of the tiled block
    bool has_tiles = false;
  };
  Tiled tiled(MemoryAction action, bool pinned = false) {
    Net net;
    Watched watched(*net, MeasureMode::off);
    watched.visits->set_action(BlockId(1), action);
    if (pinned) watched.visits->pin(BlockId(1), "for the test");
    torch::manual_seed(4);
    const Tensor x = net->a(net->middle(8));
    const Tensor y = cox::tile(
        [&](const Tensor& rows) {
          return torch::dropout(torch::tanh(net->b(rows)).exp(), 0.3, true);
        },
        x, 0, 3);
    Tiled seen;
    seen.has_tiles = watched.visits->has_tiles();
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
        watched.visits->set_action(BlockId(static_cast<BlockId::rep>(b)), action);
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
