#include "sdk/src/parallel/batch_statistics.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "coordinator/transport/solo.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/session/session_state.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using cox::detail::BatchStatistics;
using cox::detail::BlockWatch;

namespace {

namespace nn = torch::nn;

struct LayerImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(twice(twice(linear(x)))); }
  nn::Linear linear{register_module("linear", nn::Linear(4, 4))};
  nn::BatchNorm1d twice{
      register_module("twice", nn::BatchNorm1d(nn::BatchNorm1dOptions(4).momentum(0.3)))};
};
TORCH_MODULE(Layer);

// Norms of all kinds: in a recomputable block, without momentum, frozen, skipped by some
// micro-batches, in fp64, of instances.
struct NetImpl : nn::Module {
  NetImpl() { frozen->eval(); }
  at::Tensor forward(const at::Tensor& in) {
    at::Tensor x = frozen(average(layer(in)));
    if (in.size(0) > 3) x = sometimes(x);
    x = wide(x.to(at::kDouble)).to(at::kFloat);
    return instances(x.view({1, 4, -1})).square().sum();
  }
  Layer layer{register_module("layer", Layer())};
  nn::BatchNorm1d average{register_module(
      "average", nn::BatchNorm1d(nn::BatchNorm1dOptions(4).momentum(std::nullopt)))};
  nn::BatchNorm1d frozen{register_module("frozen", nn::BatchNorm1d(4))};
  nn::BatchNorm1d sometimes{register_module("sometimes", nn::BatchNorm1d(4))};
  nn::BatchNorm1d wide{register_module("wide", wide_norm())};
  nn::InstanceNorm1d instances{register_module(
      "instances", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).track_running_stats(true)))};

  static nn::BatchNorm1d wide_norm() {
    nn::BatchNorm1d made(4);
    made->to(at::kDouble);
    return made;
  }
};
TORCH_MODULE(Net);

Net new_net() {
  torch::manual_seed(3);
  Net net;
  for (const at::Tensor& buffer : net->buffers()) {
    if (buffer.dim() == 1) buffer.uniform_(0.5, 1.5);
  }
  return net;
}

at::Tensor input_of(int step, std::uint64_t micro_batch) {
  torch::manual_seed(100 * static_cast<std::uint64_t>(step) + micro_batch);
  return torch::randn({3 + static_cast<std::int64_t>(micro_batch % 3), 4}) * 2 + 1;
}

void run_micro_batches(Net& net, BatchStatistics& statistics, int step, std::uint64_t first,
                       std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; ++i) {
    statistics.begin_micro_batch(i);
    net->forward(input_of(step, i)).backward();
    statistics.end_micro_batch();
  }
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

constexpr std::uint64_t kMicroBatches = 7;
const cox::transport::WaitPolicy kWait;

// Runs all micro-batches in this process.
void serial_step(Net& net, BatchStatistics& statistics, int step) {
  const auto solo = cox::transport::solo_communicator();
  statistics.begin_step();
  run_micro_batches(net, statistics, step, 0, kMicroBatches);
  REQUIRE(statistics
              .fold(
                  *solo, kWait, [] {}, kMicroBatches, kMicroBatches)
              .ok());
}

// Returns the micro-batches of each rank: other shares in every step, some of them 0.
std::vector<std::uint64_t> shares_of(int step, int world) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(world), 0);
  for (std::uint64_t i = 0; i < kMicroBatches; ++i) {
    ++counts[(i * i + static_cast<std::uint64_t>(step)) % counts.size()];
  }
  return counts;
}

}  // namespace

TEST_SUITE("batch statistics") {
  TEST_CASE("after every step all ranks have the bits of one process that ran all micro-batches") {
    auto session = solo_session();
    auto& ranks = session.state().job().data();
    Net net = new_net();
    Net alone = new_net();
    BatchStatistics statistics(*net);
    BatchStatistics reference(*alone);
    CHECK(statistics.buffers().size() == 6 * 3);
    for (int step = 0; step < 5; ++step) {
      serial_step(alone, reference, step);
      const auto counts = shares_of(step, session.world_size());
      const auto me = static_cast<std::size_t>(session.rank());
      std::uint64_t first = 0;
      for (std::size_t r = 0; r < me; ++r) first += counts[r];
      statistics.begin_step();
      run_micro_batches(net, statistics, step, first, counts[me]);
      const std::uint64_t most = *std::max_element(counts.begin(), counts.end());
      REQUIRE(statistics
                  .fold(
                      ranks, kWait, [] {}, kMicroBatches, most)
                  .ok());
      CHECK(all_equal(net->buffers(), alone->buffers()));
    }
  }

  TEST_CASE("torch alone is a rounding per micro-batch away, and counts the same") {
    Net net = new_net();
    Net plain = new_net();
    BatchStatistics statistics(*net);
    float worst = 0;  // in units in the last place of a buffer's largest value
    for (int step = 0; step < 5; ++step) {
      serial_step(net, statistics, step);
      for (std::uint64_t i = 0; i < kMicroBatches; ++i) plain->forward(input_of(step, i));
    }
    const auto ours = net->named_buffers();
    for (const auto& each : plain->named_buffers()) {
      const at::Tensor mine = ours[each.key()];
      if (!mine.is_floating_point()) {
        CHECK(torch::equal(mine, each.value()));
        continue;
      }
      const bool is_wide = mine.scalar_type() == at::kDouble;
      const double unit = is_wide ? 0x1p-52 : 0x1p-23;
      const at::Tensor away = (mine - each.value()).abs().max() / each.value().abs().max() / unit;
      worst = std::max(worst, away.to(at::kFloat).item<float>());
    }
    CAPTURE(worst);
    CHECK(worst < 4);
    CHECK(torch::equal(net->frozen->running_mean, new_net()->frozen->running_mean));
  }

  TEST_CASE("recompute within a micro-batch changes no bit") {
    Net kept = new_net();
    Net recomputed = new_net();
    BatchStatistics one(*kept);
    BatchStatistics other(*recomputed);
    BlockWatch blocks;
    blocks.attach(*recomputed);
    REQUIRE(blocks.size() > 0);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      blocks.visits()->parts().steering.set_action(cox::BlockId(static_cast<cox::BlockId::rep>(b)),
                                                   cox::MemoryAction::recompute);
    }
    for (int step = 0; step < 3; ++step) {
      serial_step(kept, one, step);
      {
        const BlockWatch::Following shown(blocks);
        serial_step(recomputed, other, step);
      }
      CHECK(all_equal(kept->buffers(), recomputed->buffers()));
    }
  }

  TEST_CASE("a step that is given up leaves the values of its start, and its repeat is the same") {
    Net net = new_net();
    Net other = new_net();
    BatchStatistics statistics(*net);
    BatchStatistics reference(*other);
    statistics.put_back();  // nothing to undo
    const auto start = copies_of(net->buffers());
    CHECK(all_equal(net->buffers(), start));
    statistics.begin_step();
    run_micro_batches(net, statistics, 0, 0, 3);
    statistics.begin_micro_batch(3);  // imitates a failure here
    statistics.put_back();
    CHECK(all_equal(net->buffers(), start));
    serial_step(net, statistics, 0);
    serial_step(other, reference, 0);
    CHECK(all_equal(net->buffers(), other->buffers()));
  }

  TEST_CASE("a counter in bf16, as a model that was cast has, loses no run") {
    Net net = new_net();
    Net cast = new_net();
    at::Tensor& counter = cast->layer->twice->num_batches_tracked;
    counter.set_data(torch::full({}, 1000, at::kBFloat16));
    BatchStatistics one(*net);
    BatchStatistics other(*cast);
    serial_step(net, one, 0);
    serial_step(cast, other, 0);
    CHECK(torch::equal(net->layer->twice->running_mean, cast->layer->twice->running_mean));
  }

  TEST_CASE("a norm that is frozen within a step reads what it had at the step's start") {
    nn::Sequential model(nn::BatchNorm1d(4));
    auto* norm = model->children()[0]->as<nn::BatchNorm1d>();
    BatchStatistics statistics(*model);
    const auto solo = cox::transport::solo_communicator();
    statistics.begin_step();
    statistics.begin_micro_batch(0);
    model->forward(input_of(0, 0));
    statistics.end_micro_batch();
    const at::Tensor part = norm->running_mean.clone();
    model->eval();
    statistics.begin_micro_batch(1);
    CHECK(torch::equal(norm->running_var, torch::ones({4})));
    model->forward(input_of(0, 1));
    statistics.end_micro_batch();
    REQUIRE(statistics
                .fold(
                    *solo, kWait, [] {}, 2, 2)
                .ok());
    CHECK(torch::equal(norm->running_mean, part));
    CHECK(norm->num_batches_tracked.item<std::int64_t>() == 1);
  }

  TEST_CASE("missing micro-batches and a plain average that skips one are errors on every rank") {
    auto session = solo_session();
    Net net = new_net();
    BatchStatistics statistics(*net);
    const auto start = copies_of(net->buffers());
    statistics.begin_step();
    const auto me = static_cast<std::uint64_t>(session.rank());
    run_micro_batches(net, statistics, 0, me, 1);
    const auto world = static_cast<std::uint64_t>(session.world_size());
    auto& ranks = session.state().job().data();
    const auto missing = statistics.fold(
        ranks, kWait, [] {}, world + 1, 2);
    CHECK(missing.code() == cox::StatusCode::internal);
    CHECK(all_equal(net->buffers(), start));

    statistics.begin_step();
    statistics.begin_micro_batch(2 * me);
    net->average->forward(input_of(0, 0));
    statistics.end_micro_batch();
    statistics.begin_micro_batch(2 * me + 1);
    statistics.end_micro_batch();
    const auto skipped = statistics.fold(
        ranks, kWait, [] {}, 2 * world, 2);
    CHECK(skipped.code() == cox::StatusCode::failed_precondition);
    CHECK(all_equal(net->buffers(), start));
  }

  TEST_CASE("a model without norms has nothing to do") {
    nn::Sequential model(nn::Linear(4, 4),
                         nn::BatchNorm1d(nn::BatchNorm1dOptions(4).track_running_stats(false)));
    BatchStatistics statistics(*model);
    CHECK(statistics.empty());
    statistics.begin_step();
    statistics.begin_micro_batch(0);
    statistics.end_micro_batch();
    const auto solo = cox::transport::solo_communicator();
    CHECK(statistics
              .fold(
                  *solo, kWait, [] {}, 5, 5)
              .ok());
  }
}
