// A burst of outliers in an FP8 block: the time until the block computes in bf16.
#include <torch/torch.h>

#include <chrono>
#include <thread>
#include <vector>

#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "product_probe.h"
#include "solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kWidth = 16;

struct LookingImpl : torch::nn::Module {
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(kWidth, kWidth))};
  Precision seen = Precision::fp32;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x);
    seen = cox::test::format_of_products(linear->weight);
    return y;
  }
};
TORCH_MODULE(Looking);

struct Loop {
  Looking block;
  torch::nn::Sequential model{block};
  Session session;
  Reducer reducer;
  std::uint64_t steps = 0;

  explicit Loop(const std::vector<std::string>& flags)
      : session(solo_session(flags)), reducer(session, *model) {}

  // Runs a step on inputs of the given size, and waits until the coordinator has answered it.
  // Returns the format in which the block ran.
  Precision step(double size) {
    const std::uint64_t judged = session.report().rounds;
    take_step(size);
    for (int i = 0; i < 20000 && session.report().rounds == judged; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return block->seen;
  }

 private:
  void take_step(double size) {
    auto step = session.step();
    for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
    torch::manual_seed(++steps);
    reducer.backward(step, model->forward(size * torch::randn({8, kWidth})).square().mean(), 8);
    reducer.average(step);
  }
};

// Runs steps until a burst is computed in fp8. Returns whether one was. On a loaded machine fp8 can
// measure slow, and the change to fp8 is then taken back for a while.
bool burst_in_fp8(Loop& loop) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    int steps = 0;
    while (loop.step(1) != Precision::fp8 && steps < 1000) ++steps;
    if (steps == 1000) return false;
    for (int i = 0; i < 5; ++i) loop.step(1);
    if (loop.step(1000) == Precision::fp8) return true;
  }
  return false;
}

}  // namespace

TEST_SUITE("sdk.session precision") {
  TEST_CASE("a burst of outliers takes a block from fp8 back to bf16 within a few steps") {
    torch::manual_seed(1);
    Loop loop({"--cox.precision.format=auto", "--cox.precision.emulate=on",
               "--cox.precision.fp8_scaling=delayed", "--cox.precision.sample_every=1",
               "--cox.precision.patience_rounds=4", "--cox.precision.enter_noise_ratio=0.001",
               "--cox.precision.leave_noise_ratio=0"});
    REQUIRE(burst_in_fp8(loop));
    int in_fp8 = 0;
    while (loop.step(1) == Precision::fp8 && in_fp8 < 100) ++in_fp8;
    MESSAGE("steps in fp8 after the burst: " << in_fp8);
    CHECK(in_fp8 <= 4);
  }
}
