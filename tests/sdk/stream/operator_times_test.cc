// The planner's forecast for a measured region matches the operators that a tape runs again, for
// the models of models.h and for small programs of known cost.
#include "sdk/src/stream/operator_times.h"

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <thread>

#include "sdk/src/memory/counting_allocator.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/stream/models.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;
using Loss = std::function<Tensor()>;

std::shared_ptr<Tape> recorded(const Loss& loss, HoldChoice choice, Tensor& result) {
  torch::manual_seed(7);
  auto tape = Tape::make("block test", std::move(choice));
  {
    const TapeScope scope(*tape);
    result = loss();
  }
  tape->close();
  return tape;
}

MeasuredRegion measured(const Loss& loss, Hold hold) {
  torch::manual_seed(7);
  const auto tape = Tape::make("block test", [hold](const SavedValue&) { return hold; });
  tape->measure(std::make_shared<RegionMeter>(&steady_ns));
  Tensor result;
  {
    const TapeScope scope(*tape);
    result = loss();
  }
  tape->close();
  return measured_region(*tape);
}

planner::KeptSet random_set(const planner::OperatorGraph& graph, std::mt19937_64& random) {
  planner::KeptSet kept(graph.storages.size());
  const double share = std::uniform_real_distribution<>(0, 1)(random);
  for (std::size_t s = 0; s < kept.size(); ++s)
    kept[s] = std::uniform_real_distribution<>(0, 1)(random) < share;
  return kept;
}

std::int64_t candidate_bytes(const planner::OperatorGraph& graph) {
  return planner::held_bytes(graph, planner::KeptSet(graph.storages.size(), true));
}

std::vector<Tensor> block_weights() {
  torch::manual_seed(1);
  std::vector<Tensor> weights;
  for (const auto& [rows, columns] : {std::array{32, 96}, {32, 32}, {32, 128}, {128, 32}})
    weights.push_back((torch::randn({rows, columns}) * 0.1).requires_grad_());
  return weights;
}

Tensor transformer_block(const Tensor& x, const std::vector<Tensor>& weights) {
  const Tensor qkv = torch::layer_norm(x, {32}).matmul(weights[0]);
  std::vector<Tensor> parts = qkv.split(32, 2);
  for (Tensor& part : parts) part = part.view({2, 16, 4, 8}).transpose(1, 2);
  const Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
  const Tensor y =
      x + torch::dropout(mixed.transpose(1, 2).reshape({2, 16, 32}).matmul(weights[1]), 0.1, true);
  const Tensor inner = at::gelu(torch::layer_norm(y, {32}).matmul(weights[2]), "tanh");
  return (y + torch::dropout(inner.matmul(weights[3]), 0.1, true)).square().sum();
}

// Returns the weights' gradients, in turn; under a tape if `counts` is given.
std::vector<Tensor> gradients(const Loss& loss, const std::vector<Tensor>& weights,
                              HoldChoice choice, TapeCounts* counts) {
  for (const Tensor& weight : weights) weight.mutable_grad().reset();
  torch::manual_seed(7);
  Tensor result;
  std::shared_ptr<Tape> tape;
  if (counts != nullptr) {
    tape = recorded(loss, std::move(choice), result);
  } else {
    result = loss();
  }
  result.backward();
  if (counts != nullptr) *counts = tape->counts();
  std::vector<Tensor> found;
  for (const Tensor& weight : weights) found.push_back(weight.grad());
  return found;
}

// Bytes of the loss's own gradient, and of the state that a replay of random operators saves.
constexpr std::int64_t kRootGradient = 4, kGeneratorState = 5056;

// Returns the level of tensors on the CPU since the last reading.
MemoryLevel memory_level() {
  const MemoryCount count = counted_memory();
  reset_counted_peak();
  return {count.live_bytes, count.peak_bytes};
}

// Measures as a trial does: drops everything, forward and backward.
MeasuredRegion measured_both_ways(const Loss& loss, const std::vector<Tensor>& weights) {
  for (const Tensor& weight : weights) weight.mutable_grad().reset();
  torch::manual_seed(7);
  const auto tape = Tape::make("block test");
  tape->measure(std::make_shared<RegionMeter>(&steady_ns, &memory_level));
  Tensor result;
  {
    const TapeScope scope(*tape);
    result = loss();
  }
  tape->close();
  MeasuredRegion region = measured_region(*tape);
  result.backward();
  learn_backward(region);
  return region;
}

// Returns the peak in backward under these kept storages, above the other live bytes.
std::int64_t peak_of_backward(const Loss& loss, const std::vector<Tensor>& weights,
                              const MeasuredRegion& region, const planner::KeptSet& kept) {
  for (const Tensor& weight : weights) weight.mutable_grad().reset();
  Tensor result;
  const auto tape = recorded(loss, choice_of(region, kept), result);
  const std::int64_t before = memory_level().live_bytes - planner::held_bytes(region.graph, kept);
  result.backward();
  return memory_level().peak_bytes - before;
}

TEST_SUITE("sdk.stream.operator_times") {
  TEST_CASE("what the planner foretells is what tapes run again") {
    REQUIRE(install_saved_tensor_engine().ok());
    std::mt19937_64 random(3);
    for (const stream_models::ModelCase& model : stream_models::all_models(5)) {
      CAPTURE(model.name);
      const Loss loss = [&] { return model.loss(9); };
      torch::jit::setGraphExecutorOptimize(false);
      const MeasuredRegion region = measured(loss, Hold::keep);
      REQUIRE(planner::validate(region.graph).ok());
      CHECK(candidate_bytes(region.graph) > 0);
      for (int i = 0; i < 12; ++i) {
        CAPTURE(i);
        const planner::KeptSet kept = i == 0 ? planner::KeptSet(region.graph.storages.size())
                                             : random_set(region.graph, random);
        const planner::Slice slice = planner::slice(region.graph, kept);
        Tensor result;
        const auto tape = recorded(loss, choice_of(region, kept), result);
        result.backward();
        CHECK(tape->counts().replayed == slice.operators.size());
      }
      torch::jit::setGraphExecutorOptimize(true);
    }
  }

  TEST_CASE("the peak of a backward pass is foretold for sets that were never tried") {
    REQUIRE(install_saved_tensor_engine().ok());
    REQUIRE(install_counting_allocator().ok());
    std::mt19937_64 random(4);
    for (const stream_models::ModelCase& model : stream_models::all_models(5)) {
      CAPTURE(model.name);
      const Loss loss = [&] { return model.loss(9); };
      torch::jit::setGraphExecutorOptimize(false);
      const std::vector<Tensor> weights = model.model->parameters();
      const MeasuredRegion region = measured_both_ways(loss, weights);
      REQUIRE(planner::validate(region.graph).ok());
      for (int i = 0; i < 12; ++i) {
        CAPTURE(i);
        const planner::KeptSet kept = i == 0 ? planner::KeptSet(region.graph.storages.size())
                                             : random_set(region.graph, random);
        const std::int64_t foretold = planner::slice(region.graph, kept).bytes_with_gradients;
        const std::int64_t found = peak_of_backward(loss, weights, region, kept);
        CHECK(found >= foretold);
        CHECK(found <= foretold + kRootGradient + kGeneratorState);
      }
      torch::jit::setGraphExecutorOptimize(true);
    }
  }

  TEST_CASE(
      "the levels of a transformer block's front hold their bytes and give the same gradients") {
    REQUIRE(install_saved_tensor_engine().ok());
    const std::vector<Tensor> weights = block_weights();
    const Tensor x = torch::randn({2, 16, 32}).requires_grad_();
    const Loss loss = [&] { return transformer_block(x, weights); };
    const MeasuredRegion region = measured(loss, Hold::keep);
    const planner::StorageFront front = planner::storage_front(region.graph);
    CHECK(front.is_exact);
    CHECK(front.points.front().held_bytes == 0);
    CHECK(front.points.back().replay_ns == 0);
    const std::vector<std::size_t> levels = planner::levels(front, 7);
    CHECK(levels.size() == std::min<std::size_t>(7, front.points.size() - 2));
    const std::vector<Tensor> plain = gradients(loss, weights, {}, nullptr);
    for (const std::size_t level : levels) {
      CAPTURE(level);
      const planner::KeptSet& kept = front.points[level].kept;
      TapeCounts counts;
      const auto found = gradients(loss, weights, choice_of(region, kept), &counts);
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(sdk_test::same_bits(plain[i], found[i]));
      CHECK(counts.replayed == planner::slice(region.graph, kept).operators.size());
    }
  }

  TEST_CASE("a region is the same whether its saved tensors are kept or dropped") {
    REQUIRE(install_saved_tensor_engine().ok());
    const stream_models::ModelCase model = stream_models::make_gpt2(5);
    const Loss loss = [&] { return model.loss(9); };
    MeasuredRegion keeps = measured(loss, Hold::keep);
    const MeasuredRegion drops = measured(loss, Hold::drop);
    CHECK(is_alike(keeps.graph, drops.graph));
    const bool has_same_keys = keeps.saved == drops.saved;
    CHECK(has_same_keys);
    const auto first = keeps.graph.operators;
    take_lesser(keeps, drops);
    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(keeps.graph.operators[i].ns <= first[i].ns);
      CHECK(keeps.graph.operators[i].ns <= drops.graph.operators[i].ns);
    }
    MeasuredRegion other = keeps;
    other.graph.operators[0].name = "another";
    CHECK_FALSE(is_alike(keeps.graph, other.graph));
  }

  TEST_CASE("bytes are those of storages, and times exclude what the tape does") {
    REQUIRE(install_saved_tensor_engine().ok());
    const Tensor weight = torch::randn({8, 8}).requires_grad_();
    const Loss loss = [&] {
      const Tensor thirds = weight.mm(weight);  // 256 bytes
      return (thirds.narrow(0, 0, 4).sigmoid() * thirds.narrow(0, 4, 4)).sum();
    };
    std::int64_t calls = 0;  // a reading of the clock takes a microsecond
    const auto tape = Tape::make("block test");
    tape->measure(std::make_shared<RegionMeter>([&calls] { return 1000 * calls++; }));
    Tensor result;
    {
      const TapeScope scope(*tape);
      result = loss();
    }
    tape->close();
    const MeasuredRegion region = measured_region(*tape);
    std::vector<std::int64_t> bytes;
    for (const auto& storage : region.graph.storages) bytes.push_back(storage.bytes);
    const bool is_as_made = bytes == std::vector<std::int64_t>{256, 128, 128, 4};
    CHECK(is_as_made);
    // mm saved its arguments, which are parameters and must be kept; the product of the sigmoid
    // saved both of its own.
    const bool is_saved = planner::candidates(region.graph) == std::vector<std::int32_t>{0, 1};
    CHECK(is_saved);
    for (const auto& it : region.graph.operators) {
      CAPTURE(it.name);
      // A saved tensor costs two readings. One of them lies between the tape's begin and end.
      CHECK(it.ns % 1000 == 0);
      CHECK(it.ns <=
            1000 + 1000 * static_cast<std::int64_t>(std::max<std::size_t>(2, it.saves.size())));
    }
  }

  TEST_CASE("what a custom function saved is held anyway") {
    struct Twice : torch::autograd::Function<Twice> {
      static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
        context->save_for_backward({x});
        return x * 2;
      }
      static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                     torch::autograd::variable_list grads) {
        return {grads[0] * 2};
      }
    };
    REQUIRE(install_saved_tensor_engine().ok());
    const Tensor weight = torch::randn({8, 8}).requires_grad_();
    const auto region =
        measured([&] { return Twice::apply(weight.mm(weight)).sigmoid().sum(); }, Hold::drop);
    const auto held =
        std::ranges::count_if(region.graph.storages, [](const auto& it) { return it.is_held; });
    CHECK(held == 1);
    CHECK(region.graph.storages[0].is_held);
  }

  TEST_CASE("an operator that throws leaves nothing behind") {
    REQUIRE(install_saved_tensor_engine().ok());
    const Tensor weight = torch::randn({8, 8}).requires_grad_();
    const auto region = measured(
        [&] {
          Tensor x = weight.sigmoid();
          CHECK_THROWS(x.mm(torch::ones({3, 3})));
          return x.sigmoid().sum();
        },
        Hold::drop);
    CHECK(planner::validate(region.graph).ok());
    for (const auto& it : region.graph.operators) CHECK(it.name != "aten::mm");
  }
}

}  // namespace
