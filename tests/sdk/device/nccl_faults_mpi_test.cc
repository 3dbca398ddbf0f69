// Faults between ranks on devices while the fake NCCL sums gradients: all ranks train on the same
// averages, or all get an error soon.
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"
#include "tests/support/cuda/nccl_script.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Allocates the device's memory.
class FullDevice {
 public:
  void fill(c10::Device device) {
    const torch::NoGradGuard no_grad;
    for (const std::int64_t bytes : {8 << 20, 1 << 20, 64 << 10, 4 << 10, 512}) {
      try {
        for (;;) taken_.push_back(at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)));
      } catch (const c10::OutOfMemoryError&) {
      }
    }
  }
  void free() { taken_.clear(); }

 private:
  std::vector<at::Tensor> taken_;
};

// The order of parameters: a matrix, many small ones and two that fill a bucket of 1 KiB. The last
// ones are sent first. Gradients in bf16 stay beside their buckets, so that gathering frees no
// memory.
constexpr std::size_t kEndsFirstBucket = 41;
constexpr std::size_t kEndsSecondBucket = 25;
std::vector<at::Tensor> parameters_on(c10::Device device) {
  std::vector<at::Tensor> made{torch::ones({16, 8})};
  for (int i = 0; i < 40; ++i) made.push_back(torch::ones({4}, at::kBFloat16));
  for (int i = 0; i < 2; ++i) made.push_back(torch::ones({128}, at::kBFloat16));
  for (at::Tensor& each : made) each = each.to(device).requires_grad_(true);
  return made;
}

at::Tensor loss_of(std::span<const at::Tensor> parameters, const at::Tensor& input) {
  at::Tensor loss = input.matmul(parameters[0]).pow(2).mean();
  for (const at::Tensor& each : parameters.subspan(1)) loss = loss + (each * input.mean()).sum();
  return loss;
}

std::vector<std::string> flags_with(const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--cox.run.device=cuda", "--cox.reduction.bucket_bytes=1KiB"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

struct Trained {
  std::vector<at::Tensor> parameters;  // on the CPU
  int repeats = 0;
};

enum class Memory { suffices, ends_with_gradient, ends_with_backward };

struct Fault {
  Memory memory = Memory::suffices;  // the last rank's device, in the third step
  std::size_t gradient = 0;          // the gradient at which memory ends
  std::size_t without = 0;           // parameters at the end without gradients
};

// Trains six steps.
Trained train(const Fault& fault) {
  auto session = solo_session(flags_with());
  const bool is_last = session.rank() == session.world_size() - 1;
  std::vector<at::Tensor> parameters = parameters_on(session.device());
  Reducer reducer(session, parameters);
  REQUIRE(reducer.path() == std::string("nccl"));
  torch::optim::SGD optimizer(parameters, 0.1);
  FullDevice full;
  bool is_short = false;
  parameters[fault.gradient].register_hook([&](const at::Tensor&) {
    if (!is_short) return;
    if (fault.memory == Memory::ends_with_gradient) return full.fill(session.device());
    torch::autograd::Engine::get_default_engine().queue_callback(
        [&] { full.fill(session.device()); });
  });
  const auto used = std::span(parameters).first(parameters.size() - fault.without);
  Trained outcome;
  for (int done = 0, tries = 0; done < 6; ++tries) {
    REQUIRE(tries < 8);
    StepScope step = session.step();
    optimizer.zero_grad();
    const at::Tensor input =
        torch::full({4, 16}, 0.1 * (done + 1) * (session.rank() + 1)).to(session.device());
    is_short = fault.memory != Memory::suffices && is_last && tries == 2;
    try {
      reducer.backward(step, loss_of(used, input), 4);
      CHECK_FALSE(is_short);
    } catch (const c10::OutOfMemoryError&) {
      CHECK(parameters[fault.gradient].grad().defined());  // so gathering had begun
      reducer.abandon();
    }
    full.free();
    step.samples(4);
    if (reducer.average(step).repeat) {
      ++outcome.repeats;
      continue;
    }
    optimizer.step();
    ++done;
  }
  for (const at::Tensor& each : parameters) outcome.parameters.push_back(each.detach().cpu());
  session.finish();
  return outcome;
}

}  // namespace

TEST_CASE("ranks train on the same averages after one ran out of memory while it gathered") {
  // The first two buckets start in the backward pass. If the first lacks a gradient, it and all
  // others start at the end of the pass.
  const Fault faults[] = {{Memory::ends_with_gradient, kEndsFirstBucket},
                          {Memory::ends_with_gradient, kEndsSecondBucket},
                          {.memory = Memory::ends_with_backward, .without = 1}};
  for (const Fault& fault : faults) {
    CAPTURE(fault.gradient);
    const Trained calm = train({.without = fault.without});
    CHECK(calm.repeats == 0);
    const Trained outcome = train(fault);
    CHECK(outcome.repeats == 1);
    for (std::size_t p = 0; p < calm.parameters.size(); ++p) {
      CAPTURE(p);
      CHECK(outcome.parameters[p].equal(calm.parameters[p]));
    }
  }
}

TEST_CASE("parameters without elements are averaged over NCCL with the others, and alone") {
  auto session = solo_session(flags_with());
  const auto filled = [&](at::IntArrayRef sizes) {
    return torch::full(sizes, session.rank() + 1.0f).to(session.device()).requires_grad_(true);
  };
  std::vector<at::Tensor> both{filled({0, 8}), filled({3}), filled({0})};
  std::vector<at::Tensor> empty{filled({0, 2})};
  ManualParallel ranks(session);
  StepScope step = session.step();
  for (const at::Tensor& each : both) each.mutable_grad() = each.detach().clone();
  for (const at::Tensor& each : empty) each.mutable_grad() = each.detach().clone();
  const double mean = (1.0 + session.world_size()) / 2;
  const GradientAverage average = ranks.all_reduce_gradients(step, both);
  CHECK(average.finite);
  CHECK(average.gradient_norm == doctest::Approx(std::sqrt(3.0) * mean));
  CHECK(both[1].grad().cpu().equal(torch::full({3}, static_cast<float>(mean))));
  CHECK(both[0].grad().sizes() == at::IntArrayRef({0, 8}));
  CHECK(ranks.all_reduce_gradients(step, empty).gradient_norm == 0);
  both[1].mutable_grad() = torch::full({3}, std::nanf("")).to(session.device());
  CHECK_FALSE(ranks.all_reduce_gradients(step, both).finite);
  static_cast<void>(ranks.close(step));
}

TEST_CASE(
    "an error, or a rank that is lost, while gradients are summed soon ends it on all ranks") {
  struct Case {
    std::string script;
    std::string error;  // part of the error on the rank that fails first
  };
  // The first, third and last of a step's four sums: early, late and at the end of its backward
  // pass.
  const std::string lost = "expected the device to finish its sums";
  const Case cases[] = {{"op=20 error=6", "remote error (6)"},
                        {"op=22 error=6", "remote error (6)"},
                        {"op=20 lost", lost},
                        {"op=22 lost", lost},
                        {"op=23 lost", lost},
                        {"op=22 lost; abort=hang", lost}};
  for (const Case& each : cases) {
    CAPTURE(each.script);
    std::string found;
    int steps = 0;
    auto session = solo_session(flags_with({"--cox.control.nccl_seconds=2"}));
    const int last = session.world_size() - 1;
    const std::vector<at::Tensor> parameters = parameters_on(session.device());
    try {
      const test::NcclScriptHere script(concat("rank=", last, " ", each.script));
      Reducer reducer(session, parameters);
      for (; steps < 20; ++steps) {
        StepScope step = session.step();
        for (const at::Tensor& p : parameters) p.mutable_grad().reset();
        reducer.backward(step, loss_of(parameters, torch::ones({4, 16}).to(session.device())), 4);
        static_cast<void>(reducer.average(step));
      }
    } catch (const Error& error) {
      found = error.what();
    }
    CAPTURE(found);
    CHECK(steps < 20);
    const bool has_heard = found.find("has left the exchange") != std::string::npos;
    CHECK((found.find(each.error) != std::string::npos || has_heard));
    for (const at::Tensor& p : parameters) CHECK(p.detach().cpu().defined());  // the stream is free
  }
}

TEST_CASE("a rank whose backward pass throws in its middle soon ends it on all ranks") {
  std::string found;
  int steps = 0;
  auto session = solo_session(flags_with());
  const bool is_last = session.rank() == session.world_size() - 1;
  const std::vector<at::Tensor> parameters = parameters_on(session.device());
  parameters[0].register_hook([&](const at::Tensor&) {
    if (is_last && steps == 3) throw std::runtime_error("no such gradient");
  });
  try {
    Reducer reducer(session, parameters);
    for (; steps < 20; ++steps) {
      StepScope step = session.step();
      for (const at::Tensor& p : parameters) p.mutable_grad().reset();
      reducer.backward(step, loss_of(parameters, torch::ones({4, 16}).to(session.device())), 4);
      static_cast<void>(reducer.average(step));
    }
  } catch (const std::exception& error) {
    found = error.what();
  }
  CAPTURE(found);
  CHECK(steps <= 3);
  CHECK(steps >= (is_last ? 3 : 2));  // others may get the error while they end the step before
  const std::string error = is_last ? "no such gradient" : "has left the exchange";
  CHECK(found.find(error) != std::string::npos);
  for (const at::Tensor& p : parameters) CHECK(p.detach().cpu().defined());  // the stream is free
}

TEST_CASE("a model that is on a device on some ranks only is one error on all of them") {
  auto session = solo_session(flags_with());
  const c10::Device device = session.rank() == 0 ? c10::Device(at::kCPU) : session.device();
  const std::vector<at::Tensor> parameters{torch::ones({3}).to(device).requires_grad_(true)};
  std::string found;
  try {
    const Reducer reducer(session, parameters);
  } catch (const Error& error) {
    found = error.what();
  }
  CHECK(found.find("CPU or device) on all ranks, found different ones from rank 0's on rank 1") !=
        std::string::npos);
}

TEST_CASE("buckets on devices are reported, and no layout is searched for where none costs more") {
  auto session = solo_session({"--cox.run.device=cuda"});
  std::vector<at::Tensor> parameters = parameters_on(session.device());
  Reducer reducer(session, parameters);
  for (int steps = 0; steps < 12; ++steps) {
    StepScope step = session.step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
    reducer.backward(step, loss_of(parameters, torch::ones({4, 16}).to(session.device())), 4);
    static_cast<void>(reducer.average(step));
    const ReductionReport report = reducer.last_reduction();
    REQUIRE(report.buckets.size() == 1);
    CHECK(report.buckets[0].bytes == 4 * (128 + 40 * 16 + 2 * 128));
    CHECK(report.buckets[0].done_seconds >= report.buckets[0].started_seconds);
    CHECK(report.buckets[0].started_seconds > 0);
  }
  CHECK(reducer.state().empty());
}
