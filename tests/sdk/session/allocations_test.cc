// Allocations of closing and opening a step: none for counting operators, once tables have grown,
// and none for reading the machine's memory. A separate program, because AllocationCount replaces
// operator new.
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/operator_watch.h"
#include "sdk/src/memory/memory_probe.h"
#include "tests/bench/allocation_count.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

// Allocations of a forward pass's operators, and of the watch's own calls.
struct Taken {
  long forward = 0;
  long calls = 0;
};

std::vector<Taken> taken_by_steps(std::uint64_t steps) {
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  BlockWatch blocks;
  blocks.attach(*model);
  OperatorWatch watch(blocks);
  const Plan plan;
  const at::Tensor x = torch::randn({4, 8});
  std::vector<Taken> taken;
  std::shared_ptr<const OperatorTable> newest;  // as the page has it
  for (std::uint64_t step = 0; step < steps; ++step) {
    const StepEnd end{RankId(0), RoundId(step), plan, 4, StepId(step)};
    StepOutput output;
    const bench::AllocationCount count;
    watch.begin_step();
    const long begun = count.so_far();
    blocks.begin_step();
    const long opened = count.so_far();
    const at::Tensor loss = model->forward(x).sum();
    const long forward = count.so_far() - opened;
    loss.backward();
    const long before_end = count.so_far();
    watch.end_step(end, output);
    taken.push_back({forward, begun + count.so_far() - before_end});
    blocks.end_step(end, output);
    if (output.operators) newest = output.operators;
  }
  blocks.release();
  return taken;
}

}  // namespace

TEST_SUITE("operator watch") {
  TEST_CASE("only the first sampled step allocates at its end; others do in their operators") {
    const auto taken = taken_by_steps(4 * OperatorWatch::kEverySteps);
    const Taken& plain = taken.back();
    CHECK(taken[OperatorWatch::kFirstStep].calls > 0);
    for (std::size_t step = 0; step < taken.size(); ++step) {
      CAPTURE(step);
      if (step != OperatorWatch::kFirstStep) CHECK(taken[step].calls == 0);
      if (step % OperatorWatch::kEverySteps == OperatorWatch::kFirstStep) {
        CHECK(taken[step].forward > plain.forward);
        continue;
      }
      // The other steps measure blocks: the first two, and one in 32.
      if (step > OperatorWatch::kFirstStep && step % BlockMeasurements::kTimesEverySteps != 0)
        CHECK(taken[step].forward == plain.forward);
    }
  }
}

TEST_SUITE("memory probe") {
  TEST_CASE("looking at the memory of process and machine allocates nothing after the first time") {
    MemoryProbe probe;
    for (std::uint64_t i = 0; i < MemoryProbe::kEverySteps; ++i) probe.look();
    probe.look_around();
    const bench::AllocationCount count;
    for (std::uint64_t i = 0; i < 2 * MemoryProbe::kEverySteps; ++i) probe.look();
    probe.look_around();
    CHECK(count.so_far() == 0);
    CHECK(probe.reading().used_bytes > 0);
    CHECK(probe.reading().limit_bytes > 0);
  }
}
