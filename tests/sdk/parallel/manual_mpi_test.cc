#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::CallKind;
using cox::detail::CallMark;

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors parameters() {
  Tensors made = {torch::ones({3, 2}), torch::ones({5}, at::kDouble), torch::ones({4}),
                  torch::ones({2}, at::kBFloat16)};
  for (at::Tensor& p : made) p.set_requires_grad(true);
  return made;
}

constexpr std::size_t kOnRank0Only = 1;
constexpr std::size_t kNowhere = 2;

// Sets the gradient of every parameter to `value` in all elements.
void give_gradients(const Tensors& of, int rank, double value) {
  for (std::size_t i = 0; i < of.size(); ++i) {
    const bool has_one = i == kNowhere ? false : i == kOnRank0Only ? rank == 0 : true;
    of[i].mutable_grad() = has_one ? torch::full_like(of[i].detach(), value) : at::Tensor();
  }
}

double value_of(const at::Tensor& p) {
  const at::Tensor wide = p.grad().to(at::kDouble);
  CHECK((wide == wide.flatten()[0]).all().item<bool>());
  return wide.flatten()[0].item<double>();
}

std::optional<Error> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

bool mentions(const std::optional<Error>& error, const std::string& part) {
  return error && error->status().message().find(part) != std::string::npos;
}

bool equal_on_all_ranks(Session& session, const std::string& text) {
  const auto all =
      cox::detail::gather_values(session.state().job().data(), std::hash<std::string>()(text));
  return all.ok() && cox::detail::ranks_that_differ(*all).empty();
}

TEST_SUITE("manual parallel") {
  TEST_CASE("a plain mean is over all ranks, those without a gradient counting as zero") {
    auto session = solo_session();
    ManualParallel ranks(session);
    const Tensors mine = parameters();
    const int world = session.world_size();
    for (int i = 0; i < 3; ++i) {
      auto step = session.step();
      give_gradients(mine, session.rank(), 4.0 * session.rank() + i);
      const GradientAverage average = ranks.all_reduce_gradients(step, mine);
      CHECK(average.weight == world);
      CHECK(average.finite);
      CHECK(value_of(mine[0]) == 2.0 * (world - 1) + i);
      CHECK(value_of(mine[kOnRank0Only]) == doctest::Approx(static_cast<double>(i) / world));
      CHECK(value_of(mine[3]) == 2.0 * (world - 1) + i);
      CHECK_FALSE(mine[kNowhere].grad().defined());
      const double squares = 8 * std::pow(2.0 * (world - 1) + i, 2) + 5.0 * i * i / world / world;
      CHECK(average.gradient_norm == doctest::Approx(std::sqrt(squares)));
      CHECK(ranks.close(step).gradient_norm == doctest::Approx(std::sqrt(squares)));
    }
  }

  TEST_CASE("a weighted mean is divided by the total weight; a rank of weight 0 only takes part") {
    auto session = solo_session();
    ManualParallel ranks(session);
    const Tensors mine = parameters();
    const int world = session.world_size();
    const int rank = session.rank();
    auto step = session.step();
    give_gradients(mine, rank, rank + 1);
    GradientAverage average = ranks.all_reduce_gradients(step, mine, 2 * rank + 1);
    double sum = 0;
    for (int r = 0; r < world; ++r) sum += (2 * r + 1) * (r + 1);
    CHECK(average.weight == world * world);
    CHECK(value_of(mine[0]) == static_cast<float>(sum / world / world));

    give_gradients(mine, rank, rank == 0 ? 3 : std::numeric_limits<double>::quiet_NaN());
    average = ranks.all_reduce_gradients(step, mine, rank == 0 ? 7 : 0);
    CHECK(average.finite);
    CHECK(average.weight == 7);
    CHECK(value_of(mine[0]) == 3);

    give_gradients(mine, rank, 5);
    average = ranks.all_reduce_gradients(step, mine, 0);
    CHECK(average.weight == 0);
    CHECK(average.gradient_norm == 0);
    for (const at::Tensor& p : mine) CHECK_FALSE(p.grad().defined());
    CHECK(ranks.close(step).finite);
  }

  TEST_CASE(
      "sets may be averaged often in a step, have parameters in common, and be unfrozen later") {
    auto session = solo_session();
    ManualParallel ranks(session);
    const Tensors all = parameters();
    const Tensors first = {all[0]};
    const Tensors second = {all[3], all[0], all[0]};
    const double mean = (session.world_size() - 1) / 2.0;
    for (int i = 0; i < 20; ++i) {
      auto step = session.step();
      const at::Tensor frozen = torch::ones({4});  // in a set for itself in every step
      for (int pass = 0; pass < 2; ++pass) {
        give_gradients(all, session.rank(), session.rank());
        (void)ranks.all_reduce_gradients(step, first);
        CHECK(value_of(all[0]) == mean);
        (void)ranks.all_reduce_gradients(step, second);
        CHECK(value_of(all[0]) == mean);
        CHECK(value_of(all[3]) == mean);
        CHECK(ranks.all_reduce_gradients(step, {frozen}).gradient_norm == 0);
        frozen.set_requires_grad(true);
        frozen.mutable_grad() = torch::full({4}, 1.0 * session.rank());
        (void)ranks.all_reduce_gradients(step, {frozen});
        CHECK(value_of(frozen) == mean);
        frozen.set_requires_grad(false);
      }
      CHECK(ranks.close(step).finite);
    }
  }

  TEST_CASE("tensors become rank 0's, now and whenever asked for") {
    auto session = solo_session();
    ManualParallel ranks(session);
    Tensors mine = parameters();
    const Tensors buffers = {torch::full({3}, session.rank(), at::kLong)};
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& p : mine) p.fill_(session.rank() + 2);
    }
    ranks.sync_parameters(mine);
    ranks.sync_buffers(buffers);
    for (const at::Tensor& p : mine) CHECK((p == 2).all().item<bool>());
    CHECK(buffers[0].sum().item<std::int64_t>() == 0);
    auto step = session.step();
    buffers[0].fill_(session.rank() + 9);
    ranks.sync_buffers(buffers);
    CHECK(buffers[0].sum().item<std::int64_t>() == 27);
    (void)ranks.close(step);
  }

  TEST_CASE("a gradient or loss that is not finite on one rank is seen by all") {
    auto session = solo_session();
    ManualParallel ranks(session);
    const Tensors mine = parameters();
    const bool is_last = session.rank() == session.world_size() - 1;
    for (const bool in_loss : {false, true}) {
      auto step = session.step();
      const double bad = std::numeric_limits<double>::infinity();
      give_gradients(mine, session.rank(), is_last && !in_loss ? bad : 1);
      step.loss(is_last && in_loss ? bad : 1, 2);
      CHECK(ranks.all_reduce_gradients(step, mine).finite == in_loss);
      const ReductionOutcome outcome = ranks.close(step);
      CHECK_FALSE(outcome.finite);
      CHECK(std::isnan(outcome.loss) == in_loss);
    }
    auto step = session.step();
    step.loss(session.rank(), session.rank() + 1);
    step.samples(3);
    const ReductionOutcome outcome = ranks.close(step);
    CHECK(outcome.finite);
    CHECK(outcome.gradient_norm == 0);
    const double n = session.world_size();
    CHECK(outcome.weight == n * (n + 1) / 2);
    CHECK(outcome.loss == doctest::Approx(2 * (n - 1) / 3));
    CHECK(outcome.samples == 3 * n);
  }

  TEST_CASE(
      "other tensors or calls on one rank are the same error on all, and training may go on") {
    auto session = solo_session();
    if (session.world_size() == 1) return;
    ManualParallel ranks(session);
    const bool is_last = session.rank() == session.world_size() - 1;
    const std::string last = "on rank " + std::to_string(session.world_size() - 1);
    auto step = session.step();
    const auto expect = [&](const std::string& text, const std::function<void()>& work) {
      const auto error = error_of(work);
      CHECK(mentions(error, text));
      REQUIRE(error.has_value());
      if (error->scope() == Error::Scope::all_ranks) {
        CHECK(equal_on_all_ranks(session, error->status().message()));
      }
    };
    Tensors other = parameters();
    other[0] = torch::ones({2, 3}, torch::requires_grad());
    expect("all_reduce_gradients of 4 tensors of other tensors " + last,
           [&] { (void)ranks.all_reduce_gradients(step, is_last ? other : parameters()); });
    other.pop_back();
    expect("sync_parameters of 3 tensors " + last,
           [&] { ranks.sync_parameters(is_last ? other : parameters()); });
    expect("found sync_buffers of 4 tensors on rank 0, close " + last, [&] {
      if (is_last) return (void)ranks.close(step);
      ranks.sync_buffers(parameters());
    });
    const Tensors mine = parameters();
    give_gradients(mine, session.rank(), 1);
    CHECK(ranks.all_reduce_gradients(step, mine).finite);
    CHECK(ranks.close(step).finite);
  }

  TEST_CASE("a weight that means nothing is refused there, and the others hear of it") {
    auto session = solo_session();
    ManualParallel ranks(session);
    const Tensors mine = parameters();
    auto step = session.step();
    for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      const bool is_mine = session.rank() == session.world_size() - 1;
      const auto error =
          error_of([&] { (void)ranks.all_reduce_gradients(step, mine, is_mine ? bad : 1); });
      CHECK(mentions(error, is_mine ? "not below 0" : "a call that was refused on rank"));
    }
    CHECK(ranks.close(step).finite);
  }

  TEST_CASE("in fp16 losses are scaled and averages are not; an overflow halves the scale") {
    torch::nn::Sequential model(torch::nn::Linear(4, 4));
    auto session = solo_session({"--cox.precision.format=fp16", "--cox.loss_scale.initial=1024"});
    ManualParallel ranks(session, *model);
    ranks.sync_parameters(model->parameters());
    const auto& loss_scale = session.capabilities().loss_scale;
    const auto loss = [&] { return model->forward(torch::ones({2, 4})).sum(); };
    for (int i = 0; i < 3; ++i) {
      auto step = session.step();
      REQUIRE(loss_scale.factor() == (i < 2 ? 1024 : 512));
      const bool is_bad = i == 1 && session.rank() == 0;
      ranks.backward(step, is_bad ? loss() * std::numeric_limits<float>::infinity() : loss());
      CHECK(ranks.all_reduce_gradients(step, model->parameters()).finite == (i != 1));
      if (i != 1) CHECK(value_of(model->parameters()[1]) == 2);
      CHECK(ranks.close(step).finite == (i != 1));
      for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
    }
    auto step = session.step();
    loss().backward();
    const auto error =
        error_of([&] { (void)ranks.all_reduce_gradients(step, model->parameters()); });
    CHECK(mentions(error, "has no loss scale"));
    CHECK(ranks.close(step).finite);
  }

  TEST_CASE("a stop asked for on one rank is agreed on by all in the same step") {
    auto session = solo_session();
    ManualParallel ranks(session);
    for (int i = 0; i < 3; ++i) {
      auto step = session.step();
      if (i == 1 && session.rank() == session.world_size() - 1) raise(SIGTERM);
      CHECK(ranks.close(step).stop == (i >= 1));
    }
  }

  TEST_CASE("it belongs before the first step, and reproducible mode is not for it") {
    {
      auto session = solo_session({"--cox.reduction.reproducible=on"});
      CHECK(mentions(error_of([&] { ManualParallel ranks(session); }), "reproducible"));
    }
    auto session = solo_session();
    { auto step = session.step(); }
    CHECK(mentions(error_of([&] { ManualParallel ranks(session); }), "before the session's first"));
  }

  TEST_CASE("what ranks do is told with the name of each that differs, up to eight") {
    const CallMark ours{CallKind::all_reduce_gradients, 4, 11};
    std::vector<CallMark> marks(12, ours);
    CHECK(cox::detail::check_matched(marks).ok());
    marks[3].layout = 12;
    marks[5] = {CallKind::sync_buffers, 4, 11};
    const std::string two = cox::detail::check_matched(marks).message();
    CHECK(two.find("all_reduce_gradients of 4 tensors of other tensors on rank 3, "
                   "sync_buffers of 4 tensors on rank 5;") != std::string::npos);
    for (std::size_t r = 1; r < 12; ++r) marks[r] = {CallKind::close, 0, 0};
    const std::string many = cox::detail::check_matched(marks).message();
    CHECK(many.find("close on rank 8 and others on 3 more;") != std::string::npos);
  }

  TEST_CASE("blocks compute in FP8 where that is asked for, as under a Reducer") {
    enum class Loop { manual, reducer };
    const at::Tensor x = torch::linspace(-3, 5, 8 * 16).view({8, 16});
    const auto output = [&x](Loop loop, const std::string& format) {
      auto session = solo_session({"--cox.precision.format=" + format});
      torch::manual_seed(2);
      torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::Linear(16, 4));
      std::optional<ManualParallel> manual;
      std::optional<Reducer> reducer;
      if (loop == Loop::manual) manual.emplace(session, *net);
      if (loop == Loop::reducer) reducer.emplace(session, *net);
      auto step = session.step();
      const at::Tensor y = net->forward(x);
      if (manual) manual->close(step);
      if (reducer) {
        reducer->backward(step, y.mean(), 1);
        static_cast<void>(reducer->average(step));
      }
      return y.detach().to(at::kFloat);
    };
    const at::Tensor fp8 = output(Loop::manual, "fp8");
    CHECK(torch::equal(fp8, output(Loop::reducer, "fp8")));
    CHECK_FALSE(torch::equal(fp8, output(Loop::manual, "bf16")));
  }
}

}  // namespace
