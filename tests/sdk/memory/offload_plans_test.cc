#include <random>

#include "sdk/src/blocks/block_state.h"
#include "sdk/src/memory/offload.h"
#include "tests/sdk/memory/recompute_support.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

using namespace memory_test;
using cox::detail::Offloader;

constexpr MemoryAction kOffload = MemoryAction::offload;

enum class Measured { no, in_full };

// Blocks that run through cox::run, with an offloader for those whose action is offload. Even the
// smallest tensors leave, since these nets have no others.
class Training {
 public:
  explicit Training(Measured measured = Measured::no)
      : measured_(measured),
        offloader_({.folder = folder_.path(), .smallest_bytes = 1, .report = {}}) {}

  template <class Net, class Loss>
  std::vector<Tensor> run(Net net, const Plan& plan, bool autocast, const Loss& loss) {
    BlockRegistry registry = *BlockRegistry::discover(*net);
    steer(registry, plan);
    registry.set_offload([this](const cox::detail::BlockState& state) {
      return offloader_.open_frame(state.name, *state.module.lock());
    });
    if (measured_ == Measured::in_full) {
      REQUIRE(registry.attach(sink).ok());
      REQUIRE(registry.measure(cox::detail::MeasureMode::full).ok());
    }
    torch::manual_seed(11);
    std::vector<Tensor> seen;
    for (int step = 0; step < 2; ++step) one_step(net, autocast, loss, seen);
    for (const Tensor& buffer : net->buffers()) seen.push_back(buffer);
    registry.release();
    return seen;
  }

  cox::detail::OffloadCounts counts() const { return offloader_.counts(); }
  blocks_test::KeepingSink sink;

 private:
  template <class Net, class Loss>
  void one_step(Net& net, bool autocast, const Loss& loss, std::vector<Tensor>& seen) {
    offloader_.begin_step();
    Tensor out;
    {
      const Autocast scope(autocast);
      out = loss(net);
    }
    net->zero_grad();
    out.backward();
    seen.push_back(out.detach().clone());
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net->parameters()) {
      if (!parameter.grad().defined()) continue;
      seen.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.01);
    }
  }

  const Measured measured_;
  const TempFolder folder_;
  Offloader offloader_;
};

template <class Net>
std::vector<Tensor> train_net(Training& training, const Plan& plan, bool autocast) {
  torch::manual_seed(7);
  return training.run(Net(), plan, autocast, [](Net& net) {
    return loss_of(net->forward(net->example(), Calls::through_run));
  });
}

std::vector<Tensor> train_small_gpt2(Training& training, const Plan& plan, bool autocast) {
  torch::manual_seed(7);
  const Tensor tokens = torch::arange(24).view({2, 12});
  return training.run(gpt2::Gpt2(tiny_gpt2()), plan, autocast,
                      [&](gpt2::Gpt2& net) { return net->loss(tokens, tokens + 1); });
}

std::vector<Tensor> train_tiled(Training& training, const Plan& plan, bool autocast) {
  torch::manual_seed(7);
  return training.run(TileNet(), plan, autocast, [](TileNet& net) { return net->loss(); });
}

using Train = std::vector<Tensor> (*)(Training&, const Plan&, bool);

const Train kNets[] = {train_small_gpt2,
                       train_net<blocks_test::GptNet>,
                       train_net<blocks_test::MlpNet>,
                       train_net<blocks_test::ConvNet>,
                       train_net<SharedNet>,
                       train_tiled};

}  // namespace

TEST_SUITE("sdk.memory.offload") {
  TEST_CASE(
      "blocks that offload, alone and among others, train to the same bits through cox::run") {
    const Plan plans[] = {{kOffload}, {kOffload, kKeep}, {kRecompute, kOffload, kTile}};
    for (const Train train : kNets) {
      for (const bool autocast : {false, true}) {
        CAPTURE(&train - kNets);
        CAPTURE(autocast);
        Training training;
        const std::vector<Tensor> kept = train(training, {kKeep}, autocast);
        CHECK(training.counts().written_bytes == 0);
        for (const Plan& plan : plans) {
          CAPTURE(&plan - plans);
          CHECK(same_bits(kept, train(training, plan, autocast)));
          CHECK(training.counts().written_bytes > 0);
          CHECK(training.counts().tier_bytes == 0);
        }
      }
    }
  }

  TEST_CASE("two hundred random plans of four actions change no bit") {
    std::mt19937 random(9);
    for (const Train train : {kNets[0], kNets[2], kNets[5]}) {
      Training training;
      const std::vector<Tensor> kept = train(training, {kKeep}, false);
      for (int trial = 0; trial < 67; ++trial) {
        Plan plan;
        for (int b = 0; b < 4; ++b) plan.push_back(static_cast<MemoryAction>(random() % 4));
        CAPTURE(trial);
        CHECK(same_bits(kept, train(training, plan, false)));
      }
    }
  }

  TEST_CASE(
      "measured in full, an offloaded block counts what keep would save, and no bit changes") {
    Training training(Measured::in_full);
    const std::vector<Tensor> kept = train_small_gpt2(training, {kKeep}, false);
    const std::vector<blocks_test::Report> kept_reports = std::exchange(training.sink.reports, {});
    CHECK(same_bits(kept, train_small_gpt2(training, {kOffload}, false)));
    REQUIRE(training.sink.reports.size() == kept_reports.size());
    for (std::size_t i = 0; i < kept_reports.size(); ++i) {
      CHECK(training.sink.reports[i].measured.saved_bytes == kept_reports[i].measured.saved_bytes);
    }
    CHECK(training.counts().written_bytes > 0);
  }
}
