// Memory budgets in users' own loops, and the state left after a session or a model is destroyed.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "solo.h"
#include "tests/sdk/model_memory.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kRows = 512;

// A model whose activations are most of a step's memory.
struct WideImpl : torch::nn::Module {
  torch::nn::Linear widen{register_module("widen", torch::nn::Linear(kWidth, 4 * kWidth))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(4 * kWidth))};
  torch::nn::Linear narrow{register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth))};

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = norm(torch::gelu(widen(x)));
    return narrow(torch::dropout(hidden, 0.1, is_training()));
  }
};
TORCH_MODULE(Wide);

torch::nn::Sequential wide_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) net->push_back(Wide());
  return net;
}

struct Trained {
  std::vector<at::Tensor> tensors;  // parameters, then buffers
  std::int64_t peak_bytes = 0;      // in the last step
  std::size_t recomputed = 0;
};

// A user's own loop whose batches may exceed the batch of calibration.
class WideJob {
 public:
  WideJob(const std::vector<std::string>& flags, std::int64_t calibrated_rows)
      : session_(solo_session(flags)), net_(wide_net()), x_(samples()) {
    session_.calibrate(*net_, [&] { return loss_of(calibrated_rows); });
  }

  void step(std::int64_t rows) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + steps_++));
    auto step = session_.step();
    cox::test::memory_of(*net_).reset_peak();
    reducer_.backward(step, loss_of(rows), 1);
    peak_bytes_ = cox::test::memory_of(*net_).count().peak_bytes;
    if (reducer_.average(step).finite) optimizer_.step();
    optimizer_.zero_grad();
    x_.mutable_grad().reset();
  }
  // Returns the steps until blocks are recomputed; `limit` if they never are. Waits for decisions.
  int steps_until_recomputed(std::int64_t rows, int limit) {
    const int before = steps_;
    while (recomputed() == 0 && steps_ < before + limit) {
      step(rows);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return steps_ - before;
  }

  std::int64_t peak_bytes() const { return peak_bytes_; }  // in the last step
  std::size_t recomputed() const {
    const auto actions = session_.plan().profiles.front();
    return static_cast<std::size_t>(std::ranges::count_if(actions, is_recompute));
  }
  Trained trained() const {
    Trained trained{{}, peak_bytes_, recomputed()};
    for (const at::Tensor& p : net_->parameters()) trained.tensors.push_back(p.detach().clone());
    for (const at::Tensor& b : net_->buffers()) trained.tensors.push_back(b.clone());
    return trained;
  }

 private:
  static at::Tensor samples() {
    torch::manual_seed(4);
    return torch::randn({kRows, kWidth}).set_requires_grad(true);
  }
  at::Tensor loss_of(std::int64_t rows) {
    return net_->forward(x_.narrow(0, 0, rows)).square().mean();
  }

  Session session_;
  torch::nn::Sequential net_;
  at::Tensor x_;
  Reducer reducer_{session_, *net_};
  torch::optim::SGD optimizer_{net_->parameters(), 0.05};
  int steps_ = 0;
  std::int64_t peak_bytes_ = 0;
};

Trained train(const std::vector<std::string>& flags, int steps, std::int64_t rows = kRows) {
  WideJob job(flags, rows);
  for (int i = 0; i < steps; ++i) job.step(rows);
  return job.trained();
}

std::string budget_of(std::int64_t bytes) {
  return "--cox.memory.budget=" + std::to_string(bytes) + "B";
}

bool same(const Trained& a, const Trained& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!at::equal(a.tensors[i], b.tensors[i])) return false;
  }
  return true;
}

std::optional<Error> error_of(const std::vector<std::string>& flags) {
  try {
    train(flags, 1);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

TEST_SUITE("memory plans of a session") {
  TEST_CASE("a loop of one's own stays within its budget and changes no bit in 20 steps") {
    const Trained kept = train({"--cox.memory.budget=1GiB"}, 20);
    CHECK(kept.recomputed == 0);
    const std::int64_t budget = kept.peak_bytes * 7 / 10;
    // On a device offload may be faster.
    const Trained within = train({budget_of(budget), "--cox.memory.offload=off"}, 20);
    CHECK(within.recomputed > 0);
    CHECK(within.peak_bytes <= budget);
    CHECK(same(kept, within));
    CHECK(same(kept, train({}, 20)));
  }

  TEST_CASE("batches that outgrow the calibration break the budget, and the next plan keeps it") {
    constexpr std::int64_t kCalibrated = kRows * 3 / 4;
    const std::vector<std::string> roomy = {"--cox.memory.budget=1GiB"};
    const std::int64_t kept = train(roomy, 3, kCalibrated).peak_bytes;
    const std::int64_t outgrown = train(roomy, 3).peak_bytes;
    const std::int64_t budget = (kept + outgrown) / 2;

    // On a device offload may be faster.
    WideJob job({budget_of(budget), "--cox.memory.offload=off"}, kCalibrated);
    job.step(kCalibrated);
    CHECK(job.peak_bytes() <= budget);
    job.step(kRows);
    CHECK(job.recomputed() == 0);
    CHECK(job.peak_bytes() > budget);
    const int broken = 1 + job.steps_until_recomputed(kRows, 20000);
    job.step(kRows);
    CHECK(job.recomputed() > 0);
    CHECK(job.peak_bytes() <= budget);

    WideJob free({}, kCalibrated);
    free.step(kCalibrated);
    for (int i = 0; i < broken + 1; ++i) free.step(kRows);
    CHECK(same(free.trained(), job.trained()));
  }

  TEST_CASE("a budget that no plan can meet is refused with the least that would do") {
    const auto error = error_of({"--cox.memory.budget=64KiB"});
    REQUIRE(error.has_value());
    CHECK(error->status().message().find("MiB") != std::string::npos);
  }

  TEST_CASE("without a budget nothing is measured") {
    auto session = solo_session();
    auto net = wide_net();
    Reducer reducer(session, *net);
    bool has_run = false;
    session.calibrate(*net, [&] {
      has_run = true;
      return net->forward(torch::randn({kRows, kWidth})).square().mean();
    });
    CHECK_FALSE(has_run);
  }

  TEST_CASE("what comes after the first step is no calibration, and is told so") {
    auto session = solo_session({"--cox.memory.budget=1GiB"});
    auto net = wide_net();
    Reducer reducer(session, *net);
    const at::Tensor x = torch::randn({kRows, kWidth});
    const auto loss_of = [&] { return net->forward(x).square().mean(); };
    {
      auto step = session.step();
      reducer.backward(step, loss_of(), 1);
      reducer.average(step);
    }
    std::string told;
    try {
      session.calibrate(*net, loss_of);
    } catch (const Error& error) {
      told = error.status().message();
    }
    CHECK(told.find("first step") != std::string::npos);
  }

  TEST_CASE("a plan that comes when the model was detached steers nothing") {
    auto session = solo_session({"--cox.memory.budget=1GiB", "--cox.precision.format=bf16"});
    auto net = wide_net();
    Reducer reducer(session, *net);
    const at::Tensor x = torch::randn({8, kWidth});
    const auto loss_of = [&] { return net->forward(x).square().mean(); };
    session.calibrate(*net, loss_of);
    const auto train_step = [&] {
      for (const at::Tensor& p : net->parameters()) p.mutable_grad().reset();
      auto step = session.step();
      reducer.backward(step, loss_of(), 1);
      (void)reducer.average(step);
    };
    train_step();
    const PlanId planned = session.plan().id;
    // The next report is sent at once only after the coordinator took this one.
    for (int i = 0; i < 20000 && session.report().rounds == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    session.force_precision("0", Precision::fp32);
    train_step();
    session.detach(*net);
    for (int i = 0; i < 2000 && session.plan().id == planned; ++i) {
      train_step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK_FALSE(session.plan().id == planned);
    train_step();
  }

  TEST_CASE("detach gives a model that was steered back as it was") {
    torch::nn::Sequential net;
    {
      auto session = solo_session({"--cox.memory.force=*=recompute"});
      net = wide_net();
      Reducer reducer(session, *net);
      const at::Tensor x = torch::randn({kRows, kWidth});
      session.calibrate(*net, [&] { return net->forward(x).square().mean(); });
      auto step = session.step();
      CHECK(is_recompute(session.plan().profiles.front().front()));
      session.detach(*net);
    }
    auto fresh = wide_net();
    torch::manual_seed(9);
    const at::Tensor x = torch::randn({8, kWidth}).set_requires_grad(true);
    const auto gradient = [&](torch::nn::Sequential& of) {
      torch::manual_seed(10);
      for (at::Tensor& p : of->parameters()) p.mutable_grad().reset();
      of->forward(x).square().mean().backward();
      return of->parameters().front().grad().clone();
    };
    CHECK(at::equal(gradient(net), gradient(fresh)));
  }
}
