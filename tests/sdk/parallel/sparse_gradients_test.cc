// Sparse gradients of autograd: the same loop at any number of ranks.
#include <torch/torch.h>

#include <cmath>

#include "coxswain/clip.h"
#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kRows = 10;

torch::nn::Embedding sparse_table() {
  torch::manual_seed(1);
  return torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, 3).sparse(true));
}

}  // namespace

TEST_SUITE("reducer over MPI") {
  TEST_CASE("sparse gradients come out dense and averaged, with one rank as with several") {
    auto session = solo_session();
    auto table = sparse_table();
    Reducer reducer(session, table->parameters());
    auto step = session.step();
    // A row of this rank alone, and a row that all ranks look up.
    const at::Tensor rows = torch::tensor({std::int64_t{session.rank()}, kRows - 1});
    reducer.backward(step, table->forward(rows).sum(), 1);
    const ReductionOutcome outcome = reducer.average(step);
    CHECK(outcome.finite);
    at::Tensor expected = torch::zeros({kRows, 3});
    expected.narrow(0, 0, session.world_size()).fill_(1.0 / session.world_size());
    expected[kRows - 1].fill_(1);
    const at::Tensor& found = table->weight.grad();
    REQUIRE(found.layout() == at::kStrided);
    CHECK(torch::allclose(found, expected));
    CHECK(outcome.gradient_norm == doctest::Approx(expected.norm().item<double>()));
  }

  TEST_CASE("a sparse gradient has a norm, and can be clipped to one") {
    auto table = sparse_table();
    table->forward(torch::tensor({std::int64_t{2}, std::int64_t{2}})).sum().backward();
    REQUIRE(table->weight.grad().is_sparse());
    const double norm = clip_by_global_norm(table->parameters(), 1);
    CHECK(norm == doctest::Approx(std::sqrt(3 * 2.0 * 2.0)));
    CHECK(table->weight.grad().to_dense().norm().item<double>() == doctest::Approx(1));
  }
}
