#include <torch/torch.h>

#include <vector>

#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Order = std::vector<std::int64_t>;

// Returns the order of the buckets after some steps; empty while it is unknown. A rank for which
// `takes_part(rank, step)` is false has no samples in the step. `which` applies to the only
// micro-batch of the first step.
template <class TakesPart>
Order learned_order(TakesPart takes_part, MicroBatch which, int steps) {
  auto session = solo_session();
  const std::vector<at::Tensor> mine = {torch::ones({3}).set_requires_grad(true),
                                        torch::ones({3}).set_requires_grad(true),
                                        torch::ones({3}).set_requires_grad(true)};
  Reducer reducer(session, mine);
  for (int i = 0; i < steps; ++i) {
    for (const at::Tensor& p : mine) p.mutable_grad().reset();
    auto step = session.step();
    // Backward reaches the second parameter first, then the last and then the first.
    const at::Tensor loss = (mine[0].sin() * mine[2] * mine[1]).sum();
    if (takes_part(session.rank(), i)) {
      reducer.backward(step, loss, 1, i == 0 ? which : MicroBatch::last);
    }
    (void)reducer.average(step);
  }
  for (const NamedTensor& named : reducer.state()) {
    if (named.name != "reducer.order") continue;
    const auto* values = named.tensor.const_data_ptr<std::int64_t>();
    return {values, values + named.tensor.numel()};
  }
  return {};
}

const Order kExpected = {1, 2, 0};

}  // namespace

TEST_SUITE("order of buckets") {
  TEST_CASE("is the one in which gradients become ready") {
    const auto all = [](int, int) { return true; };
    CHECK(learned_order(all, MicroBatch::last, 1) == kExpected);
  }

  TEST_CASE("is shown by another rank where the first has no samples") {
    const auto all_but_first = [](int rank, int) { return rank > 0; };
    CHECK(learned_order(all_but_first, MicroBatch::last, 1) == kExpected);
  }

  TEST_CASE("is waited for while no rank sends during backward") {
    const auto all = [](int, int) { return true; };
    CHECK(learned_order(all, MicroBatch::more, 1).empty());
    CHECK(learned_order(all, MicroBatch::more, 2) == kExpected);
  }
}
