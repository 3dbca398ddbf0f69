// Parameters frozen after a Reducer was made, and trained again later.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Encodes rank and step in the gradients, so that an average identifies its contributors.
double gradient_of(int rank, int step) {
  return rank + 10.0 * step;
}

double average_of(int ranks, int step) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += gradient_of(rank, step);
  return sum / ranks;
}

// Reproducible mode repeats a step until its sums have room.
ReductionOutcome average(Session& session, Reducer& reducer, const std::vector<at::Tensor>& all,
                         double gradient) {
  for (;;) {
    for (const at::Tensor& p : all) p.mutable_grad().reset();
    at::Tensor loss = torch::zeros({});
    for (const at::Tensor& p : all) loss = loss + p.sum() * gradient;
    auto step = session.step();
    reducer.backward(step, loss, 1);
    const ReductionOutcome outcome = reducer.average(step);
    if (!outcome.repeat) return outcome;
  }
}

void step_and_check(Session& session, Reducer& reducer, const std::vector<at::Tensor>& all,
                    int number) {
  CHECK(average(session, reducer, all, gradient_of(session.rank(), number)).finite);
  for (const at::Tensor& p : all) {
    REQUIRE(p.grad().defined() == p.requires_grad());
    if (!p.requires_grad()) continue;
    const double expected = average_of(session.world_size(), number);
    CHECK(torch::allclose(p.grad(), torch::full_like(p, expected).detach()));
  }
}

}  // namespace

TEST_SUITE("reducer over MPI") {
  TEST_CASE("what is frozen while buckets are laid out anew is averaged once it is trained") {
    for (const std::string mode : {"off", "on"}) {
      CAPTURE(mode);
      auto session = solo_session({"--cox.reduction.reproducible=" + mode});
      const std::vector<at::Tensor> all = {torch::ones({3}).set_requires_grad(true),
                                           torch::ones({2, 2}).set_requires_grad(true)};
      Reducer reducer(session, all);
      all[0].set_requires_grad(false);
      for (int i = 0; i < 4; ++i) step_and_check(session, reducer, all, i);
      all[0].set_requires_grad(true);
      for (int i = 4; i < 8; ++i) step_and_check(session, reducer, all, i);
    }
  }
}
