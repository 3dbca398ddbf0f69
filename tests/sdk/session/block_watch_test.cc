#include "sdk/src/blocks/block_watch.h"

#include <torch/torch.h>

#include <vector>

#include "coxswain/wrap.h"

#include <doctest/doctest.h>

namespace {

using cox::detail::BlockWatch;

TEST_SUITE("sdk.session.block_watch") {
  TEST_CASE("what a block costs is told once, and again whenever its times were measured anew") {
    torch::nn::Sequential net;
    net->push_back(torch::nn::Linear(4, 4));
    cox::wrap(net);
    BlockWatch watch;
    watch.attach(*net);
    const at::Tensor x = torch::ones({2, 4}).set_requires_grad(true);
    std::vector<std::uint64_t> told;
    for (std::uint64_t step = 0; step < 2 * BlockWatch::kTimesEverySteps + 2; ++step) {
      watch.begin_step();
      net->forward(x).sum().backward();
      const cox::Fragment fragment = watch.next_fragment();
      if (fragment.kind != cox::FragmentKind::block_profile) continue;
      told.push_back(step);
      CHECK(cox::read_block_profile(fragment)->forward_seconds > 0);
    }
    CHECK(told == std::vector<std::uint64_t>{0, BlockWatch::kTimesEverySteps,
                                             2 * BlockWatch::kTimesEverySteps});
    watch.release();
    cox::detach(*net);
  }
}

}  // namespace
