#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/reducer.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Tensors = std::vector<at::Tensor>;

// Returns one parameter of each kind: float, double, bfloat16, used on some ranks only, used
// nowhere.
Tensors parameters(std::uint64_t seed) {
  torch::manual_seed(seed);
  Tensors made = {torch::randn({3, 5}), torch::randn({7}, at::kDouble),
                  torch::randn({4}, at::kBFloat16), torch::randn({6}), torch::randn({2})};
  for (at::Tensor& p : made) p.set_requires_grad(true);
  return made;
}

constexpr std::size_t kUsedOnOddRanks = 3;
constexpr std::size_t kUsedNowhere = 4;

bool is_used(std::size_t parameter, int rank) {
  if (parameter == kUsedOnOddRanks) return rank % 2 == 1;
  return parameter != kUsedNowhere;
}

// Returns the tensor that is a rank's gradient in a step.
at::Tensor coefficient(const Tensors& of, std::size_t parameter, int rank, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 * step + 10 * rank) + parameter);
  return torch::randn_like(of[parameter], torch::TensorOptions().requires_grad(false));
}

at::Tensor loss_of(const Tensors& of, int rank, int step) {
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (!is_used(i, rank)) continue;
    loss = loss + (of[i] * coefficient(of, i, rank, step)).to(at::kDouble).sum();
  }
  return loss;
}

double weight_of(int rank, int step) {
  if (rank == 1 && step % 2 == 1) return 0;  // a rank without samples
  return 1 + rank + 0.5 * step;
}

bool is_used_somewhere(std::size_t parameter, int world, int step) {
  for (int rank = 0; rank < world; ++rank) {
    if (weight_of(rank, step) > 0 && is_used(parameter, rank)) return true;
  }
  return false;
}

// Computes the reducer's promise on one rank: ascending ranks, one division.
at::Tensor serial_average(const Tensors& of, std::size_t parameter, int world, int step) {
  const auto type = of[parameter].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum;
  double total = 0;
  for (int rank = 0; rank < world; ++rank) {
    const double weight = weight_of(rank, step);
    total += weight;
    const bool has_one = weight > 0 && is_used(parameter, rank);
    at::Tensor part = has_one ? coefficient(of, parameter, rank, step).to(type) * weight
                              : torch::zeros_like(of[parameter], type).detach();
    sum = rank == 0 ? part : sum + part;
  }
  return (sum / total).to(of[parameter].scalar_type());
}

double serial_loss(const Tensors& of, int world, int step) {
  double sum = 0;
  double total = 0;
  for (int rank = 0; rank < world; ++rank) {
    const double weight = weight_of(rank, step);
    total += weight;
    if (weight > 0) sum += weight * loss_of(of, rank, step).item<double>();
  }
  return sum / total;
}

// Returns all gradients of some steps, as bytes for comparison.
std::string train_some(int steps) {
  auto session = solo_session();
  const Tensors mine = parameters(1);
  Reducer reducer(session, mine);
  std::string bits;
  for (int i = 0; i < steps; ++i) {
    for (const at::Tensor& p : mine) p.mutable_grad().reset();
    auto step = session.step();
    reducer.backward(step, loss_of(mine, session.rank(), i), weight_of(session.rank(), i));
    const ReductionOutcome outcome = reducer.average(step);
    bits.append(reinterpret_cast<const char*>(&outcome.loss), sizeof(double));
    for (const at::Tensor& p : mine) {
      if (!p.grad().defined()) continue;
      const at::Tensor flat = p.grad().contiguous();
      bits.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
  }
  return bits;
}

bool equal_on_all_ranks(Session& session, const std::string& bits) {
  const auto all =
      cox::detail::gather_values(session.state().job().data(), std::hash<std::string>()(bits));
  return all.ok() && cox::detail::ranks_that_differ(*all).empty();
}

std::optional<Error> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

TEST_SUITE("reducer over MPI") {
  TEST_CASE("the average is the serial one to the bit, with uneven weights and unused parameters") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    for (int i = 0; i < 6; ++i) {
      CAPTURE(i);
      for (const at::Tensor& p : mine) p.mutable_grad().reset();
      auto step = session.step();
      const double weight = weight_of(session.rank(), i);
      reducer.backward(step, loss_of(mine, session.rank(), i), weight);
      const ReductionOutcome outcome = reducer.average(step);
      CHECK(outcome.finite);
      CHECK(outcome.loss == doctest::Approx(serial_loss(mine, session.world_size(), i)));
      double squares = 0;
      for (std::size_t p = 0; p < mine.size(); ++p) {
        CAPTURE(p);
        REQUIRE(mine[p].grad().defined() == is_used_somewhere(p, session.world_size(), i));
        if (!mine[p].grad().defined()) continue;
        CHECK(torch::equal(mine[p].grad(), serial_average(mine, p, session.world_size(), i)));
        squares += mine[p].grad().to(at::kDouble).square().sum().item<double>();
      }
      CHECK(outcome.gradient_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-3));
    }
  }

  TEST_CASE("micro-batches count by their weights") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    auto step = session.step();
    const int rank = session.rank();
    reducer.backward(step, loss_of(mine, rank, 0), 1, MicroBatch::more);
    reducer.backward(step, loss_of(mine, rank, 1), 3);
    CHECK_THROWS_AS(reducer.backward(step, loss_of(mine, rank, 1), 3), Error);
    const ReductionOutcome outcome = reducer.average(step);
    CHECK(outcome.weight == 4 * session.world_size());
    at::Tensor expected = torch::zeros({3, 5}, at::kDouble);
    for (int r = 0; r < session.world_size(); ++r) {
      expected = expected + coefficient(mine, 0, r, 0) + 3 * coefficient(mine, 0, r, 1);
    }
    CHECK(torch::allclose(mine[0].grad().to(at::kDouble), expected / outcome.weight, 1e-5, 1e-6));
  }

  TEST_CASE("two runs give the same bits, equal on all ranks") {
    const std::string first = train_some(5);
    const std::string second = train_some(5);
    CHECK(first == second);
    auto session = solo_session();
    CHECK(equal_on_all_ranks(session, first));
  }

  TEST_CASE("parameters and buffers start as rank 0's, whatever their type") {
    auto session = solo_session();
    const Tensors mine = parameters(100 + static_cast<std::uint64_t>(session.rank()));
    const Tensors buffers = {torch::full({3}, session.rank(), at::kLong),
                             torch::full({2}, session.rank() == 0, at::kBool), torch::zeros({0})};
    const void* place = mine[0].const_data_ptr();
    Reducer reducer(session, mine, buffers);
    const Tensors expected = parameters(100);
    for (std::size_t i = 0; i < mine.size(); ++i) CHECK(torch::equal(mine[i], expected[i]));
    CHECK(buffers[0].sum().item<std::int64_t>() == 0);
    CHECK(buffers[1].all().item<bool>());
    CHECK(mine[0].const_data_ptr() == place);
    CHECK(mine[0].requires_grad());
  }

  TEST_CASE("other shapes, types or numbers of parameters are one error on all ranks") {
    const auto other = [](int kind) {
      Tensors made = parameters(1);
      if (kind == 0) made[1] = torch::randn({8}, at::kDouble);
      if (kind == 1) made[0] = made[0].to(at::kDouble);
      if (kind == 2) made.pop_back();
      if (kind == 3) std::swap(made[3], made[4]);
      return made;
    };
    for (int kind = 0; kind < 4; ++kind) {
      CAPTURE(kind);
      auto session = solo_session();
      const bool is_last = session.rank() == session.world_size() - 1;
      const auto error = error_of([&] { Reducer(session, is_last ? other(kind) : parameters(1)); });
      REQUIRE(error.has_value() == (session.world_size() > 1));
      if (!error) continue;
      CHECK(error->scope() == Error::Scope::all_ranks);
      const std::string last = "on rank " + std::to_string(session.world_size() - 1);
      CHECK(error->status().message().find(last) != std::string::npos);
    }
  }

  TEST_CASE("an evaluation averages losses and asks for no gradients") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    auto step = session.step();
    const double weight = session.rank() + 1;
    reducer.observe(step, 10.0 * session.rank(), weight);
    const ReductionOutcome outcome = reducer.average(step);
    const double n = session.world_size();
    CHECK(outcome.weight == n * (n + 1) / 2);
    CHECK(outcome.loss == doctest::Approx(10 * (n - 1) * 2 / 3));
    CHECK(outcome.finite);
    for (const at::Tensor& p : mine) CHECK_FALSE(p.grad().defined());
  }

  TEST_CASE("a loss or gradient that is not finite on one rank is seen by all") {
    constexpr double kBad[] = {std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()};
    for (const double bad : kBad) {
      auto session = solo_session();
      const Tensors mine = parameters(1);
      Reducer reducer(session, mine);
      for (int i = 0; i < 3; ++i) {
        CAPTURE(i);
        for (const at::Tensor& p : mine) p.mutable_grad().reset();
        auto step = session.step();
        const bool is_mine = session.rank() == session.world_size() - 1 && i == 1;
        at::Tensor loss = loss_of(mine, session.rank(), i);
        reducer.backward(step, is_mine ? loss * bad : loss, 1);
        const ReductionOutcome outcome = reducer.average(step);
        CHECK(outcome.finite == (i != 1));
        CHECK(std::isnan(outcome.loss) == (i == 1));
      }
    }
  }

  TEST_CASE("a step in which nobody has samples is averaged without harm") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    auto step = session.step();
    reducer.backward(step, at::Tensor(), 1, MicroBatch::more);
    reducer.backward(step, loss_of(mine, session.rank(), 0), 0);
    const ReductionOutcome outcome = reducer.average(step);
    CHECK(outcome.weight == 0);
    CHECK_FALSE(outcome.finite);  // no gradients for an update
    for (const at::Tensor& p : mine) CHECK_FALSE(p.grad().defined());
  }

  TEST_CASE("gradients that came past the reducer are refused, and the step can be mended") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    auto step = session.step();
    loss_of(mine, session.rank(), 0).backward();
    const auto error = error_of([&] { reducer.average(step); });
    REQUIRE(error);
    CHECK(error->status().message().find("instead of loss.backward()") != std::string::npos);
    for (const at::Tensor& p : mine) p.mutable_grad().reset();
    reducer.backward(step, loss_of(mine, session.rank(), 0), 1);
    CHECK(reducer.average(step).finite);
  }

  TEST_CASE("zeros that an optimizer left in .grad are nobody's gradients") {
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    for (int i = 0; i < 3; ++i) {
      auto step = session.step();
      const bool has_samples = session.rank() == 0;
      if (has_samples) reducer.backward(step, loss_of(mine, 0, i), 1);
      const ReductionOutcome outcome = reducer.average(step);
      CHECK(outcome.finite);
      CHECK(outcome.weight == 1);
      for (const at::Tensor& p : mine) {
        if (p.grad().defined()) p.mutable_grad() = at::zeros_like(p);
      }
    }
  }

  TEST_CASE("ranks in different steps all fail before an average is handed to any") {
    auto session = solo_session();
    if (session.world_size() == 1) return;
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    session.state().step().set_next(StepId(session.rank() == 0 ? 5 : 6));
    auto step = session.step();
    reducer.backward(step, loss_of(mine, session.rank(), 0), 1);
    const auto error = error_of([&] { (void)reducer.average(step); });
    REQUIRE(error.has_value());
    const std::string last =
        "the step of rank 1" + std::string(session.world_size() > 2 ? ", 2, 3" : "");
    CHECK(error->status().message().find("found " + last + ";") != std::string::npos);
  }

  TEST_CASE("what a reducer found out about its buckets is taken over, unless it is another's") {
    std::vector<NamedTensor> found;
    {
      auto session = solo_session();
      const Tensors mine = parameters(1);
      Reducer reducer(session, mine);
      for (int i = 0; i < 2; ++i) {
        for (const at::Tensor& p : mine) p.mutable_grad().reset();
        auto step = session.step();
        reducer.backward(step, loss_of(mine, session.rank(), i), 1);
        (void)reducer.average(step);
      }
      found = reducer.state();
    }
    auto session = solo_session();
    const Tensors mine = parameters(1);
    Reducer reducer(session, mine);
    REQUIRE(found.size() == 2);
    CHECK(reducer.load_state(found).ok());
    const auto again = reducer.state();
    REQUIRE(again.size() == found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(again[i].name == found[i].name);
      CHECK(torch::equal(again[i].tensor, found[i].tensor));
    }
    auto damaged = found;
    damaged[0].tensor = found[0].tensor.clone();
    damaged[0].tensor[0] = damaged[0].tensor[1];  // no longer a permutation
    CHECK_FALSE(reducer.load_state(damaged).ok());
    damaged = found;
    damaged[1].tensor = -found[1].tensor;
    CHECK_FALSE(reducer.load_state(damaged).ok());
    CHECK(reducer.load_state({}).ok());
  }

  TEST_CASE("a parameter that is listed twice has one gradient") {
    auto session = solo_session();
    const at::Tensor weight = torch::ones({3}).set_requires_grad(true);
    Reducer reducer(session, {weight, weight});
    auto step = session.step();
    reducer.backward(step, (2 * weight).sum(), 4);
    (void)reducer.average(step);
    CHECK(torch::equal(weight.grad(), torch::full({3}, 2.0)));
  }

  TEST_CASE("one rank's trouble is told to all, with its rank unless all have the same") {
    auto session = solo_session();
    const int last = session.world_size() - 1;
    const auto error = error_of([&] {
      session.together([&] {
        if (session.rank() == last) throw Error(not_found("no text"));
      });
    });
    REQUIRE(error.has_value());
    CHECK(error->scope() == Error::Scope::all_ranks);
    const std::string where = last > 0 ? "rank " + std::to_string(last) + ": " : "";
    CHECK(error->status().message() == where + "no text");
    const auto same =
        error_of([&] { session.together([] { throw Error(not_found("no text")); }); });
    REQUIRE(same.has_value());
    CHECK(same->status().message() == "no text");
  }
}
