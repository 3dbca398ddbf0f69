// Sums of gradients over the fake NCCL run beside the rest of the backward pass, and equal the
// CPU's for any order of gradients.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/reducer.h"
#include "stand_in_counts.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kWidth = 256;  // floats of a parameter: each fills a bucket of 1 KiB
constexpr std::size_t kDepth = 6;

Session session_on(const std::string& device) {
  return solo_session({"--cox.run.device=" + device, "--cox.reduction.bucket_bytes=1KiB"});
}

// Returns vectors that are multiplied one after the other, so the last one's gradient comes first.
std::vector<at::Tensor> chain_on(c10::Device device, double value = 1) {
  std::vector<at::Tensor> made;
  for (std::size_t p = 0; p < kDepth; ++p)
    made.push_back(torch::full({kWidth}, value).to(device).requires_grad_(true));
  return made;
}

// Reads the bytes of the stand-in's device at once, without waiting.
float first_value(const at::Tensor& on_device) {
  void* here = of_stand_in<void*(const void*)>("cox_standin_shadow")(on_device.const_data_ptr());
  return std::atomic_ref(*static_cast<float*>(here)).load();
}

bool comes_true(const std::function<bool()>& what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A rank's part in a step.
struct Part {
  int micro_batches = 1;                 // 0: none
  std::optional<std::size_t> without{};  // the parameter without influence on the loss
  std::optional<std::size_t> aside{};    // the parameter used on another stream
};
using PartOf = std::function<Part(int rank, int step)>;

c10::Stream some_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// Multiplies on another stream.
at::Tensor product_on(const c10::Stream& aside, const at::Tensor& x, const at::Tensor& parameter) {
  const c10::Stream here = c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device());
  c10::Event before(x.device().type());
  c10::Event after(x.device().type());
  before.record(here);
  before.block(aside);
  at::Tensor product;
  {
    const c10::StreamGuard guard(aside);
    x.record_stream(aside);
    product = x * parameter;
    after.record(aside);
  }
  after.block(here);
  product.record_stream(here);
  return product;
}

// Multiplies on a separate stream of a device.
at::Tensor product_aside(const at::Tensor& x, const at::Tensor& parameter) {
  return x.is_cpu() ? x * parameter : product_on(some_stream(x.device()), x, parameter);
}

at::Tensor loss_of(const std::vector<at::Tensor>& parameters, const Part& part, double scale) {
  at::Tensor x = torch::linspace(0.5, 1.5, kWidth).to(parameters[0].device()) * scale;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (part.without == p) continue;
    x = torch::tanh(part.aside == p ? product_aside(x, parameters[p]) : x * parameters[p]);
  }
  return x.mean();
}

// Trains five steps. Returns the parameters, on the CPU.
std::vector<at::Tensor> trained_on(const std::string& device, const PartOf& part_of) {
  auto session = session_on(device);
  const std::vector<at::Tensor> parameters = chain_on(session.device(), 0.9);
  Reducer reducer(session, parameters);
  torch::optim::SGD optimizer(parameters, 20.0);
  for (int turn = 0; turn < 5; ++turn) {
    StepScope step = session.step();
    optimizer.zero_grad();
    const Part part = part_of(session.rank(), turn);
    for (int m = 1; m <= part.micro_batches; ++m) {
      const auto which = m < part.micro_batches ? MicroBatch::more : MicroBatch::last;
      const double scale = 0.1 * (turn + 1) * (session.rank() + 1) + m;
      reducer.backward(step, loss_of(parameters, part, scale), m, which);
    }
    CHECK(reducer.average(step).finite);
    optimizer.step();
  }
  std::vector<at::Tensor> here;
  for (const at::Tensor& each : parameters) here.push_back(each.detach().cpu());
  session.finish();
  return here;
}

// Returns x. In backward(), another backward pass adds to the parameter's gradient. Autograd calls
// the parameter's hook inside, and once more afterwards, for the empty gradient.
struct AddsInside : torch::autograd::Function<AddsInside> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& parameter) {
    context->save_for_backward({parameter});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode with_gradients(true);
    context->get_saved_variables()[0].sum().backward();
    return {gradients[0], at::Tensor()};
  }
};

enum class Gradient { comes_again, comes_once };  // the gradient of AddsInside's parameter

// Trains three steps. Returns which steps had to be repeated.
std::vector<bool> repeated_with(Gradient gradient) {
  auto session = session_on("cuda");
  const std::vector<at::Tensor> parameters = chain_on(session.device());
  Reducer reducer(session, parameters);
  std::vector<bool> repeated;
  for (int turn = 0; turn < 3; ++turn) {
    StepScope step = session.step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
    at::Tensor x = torch::ones({kWidth}).to(session.device());
    for (std::size_t p = 0; p < kDepth; ++p) {
      if (p == 2) x = AddsInside::apply(x, parameters.back());
      if (p + 1 < kDepth || gradient == Gradient::comes_again) x = x * parameters[p];
    }
    reducer.backward(step, x.sum(), 1);
    repeated.push_back(reducer.average(step).repeat);
    if (repeated.back()) continue;
    const float all = gradient == Gradient::comes_again ? 2 : 1;
    CHECK(parameters.back().grad().cpu().equal(torch::full({kWidth}, all)));
    CHECK(parameters.front().grad().cpu().equal(torch::full({kWidth}, 1.0f)));
  }
  session.finish();
  return repeated;
}

}  // namespace

TEST_CASE("a bucket's sum is over before the last gradient of the backward pass is there" *
          doctest::skip(!on_stand_in())) {
  auto session = session_on("cuda");
  const std::vector<at::Tensor> parameters = chain_on(session.device());
  Reducer reducer(session, parameters);
  REQUIRE(reducer.path() == std::string("nccl"));
  const int ranks = session.world_size();
  const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
  std::size_t over = 0;  // buckets already summed when the last gradient comes
  parameters[0].register_hook([&](const at::Tensor&) {
    // Arriving gradients advance calls of NCCL; the last call but one is still to be handed over.
    for (std::size_t p = kDepth - 1; p > 2; --p)
      over += comes_true([&] { return first_value(parameters[p].grad()) == sum; }) ? 1 : 0;
  });
  for (std::size_t turn = 1; turn <= 3; ++turn) {
    StepScope step = session.step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
    at::Tensor x = torch::full({kWidth}, session.rank() + 1.0).to(session.device());
    for (const at::Tensor& p : parameters) x = x * p;
    reducer.backward(step, x.sum(), 1);
    CHECK(over == turn * (kDepth - 3));
    CHECK(reducer.average(step).finite);
    for (const at::Tensor& p : parameters)
      CHECK(p.grad().cpu().equal(torch::full({kWidth}, sum / static_cast<float>(ranks))));
  }
  session.finish();
}

TEST_CASE("what is summed beside the backward pass is what ranks on CPUs get") {
  struct Case {
    std::string name;
    PartOf part_of;
  };
  const Case cases[] = {
      {"one micro-batch", [](int, int) { return Part(); }},
      {"micro-batches, not as many on each rank",
       [](int rank, int) { return Part{.micro_batches = rank + 1}; }},
      {"a parameter that one rank does not use",
       [](int rank, int turn) {
         return rank == 1 ? Part{.without = static_cast<std::size_t>(turn)} : Part();
       }},
      {"a parameter that no rank uses", [](int, int) { return Part{.without = 3}; }},
      {"a rank without samples",
       [](int rank, int turn) {
         return Part{.micro_batches = rank == 1 && turn % 2 == 1 ? 0 : 1};
       }},
      {"a gradient of another stream", [](int rank, int turn) {
         return rank == 1 ? Part{.aside = static_cast<std::size_t>(turn)} : Part();
       }}};
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const std::vector<at::Tensor> here = trained_on("cpu", each.part_of);
    const std::vector<at::Tensor> there = trained_on("cuda", each.part_of);
    for (std::size_t p = 0; p < kDepth; ++p) {
      CAPTURE(p);
      CHECK(here[p].allclose(there[p], 1e-6, 1e-6));
      CHECK((here[p] - 0.9).abs().max().item<double>() > (p == 3 ? -1 : 1e-3));
    }
  }
}

TEST_CASE("the memory of a gradient of another stream is not given out before it was copied") {
  auto session = session_on("cuda");
  const std::vector<at::Tensor> parameters = chain_on(session.device(), 0.9);
  Reducer reducer(session, parameters);
  const c10::Stream aside = some_stream(session.device());
  StepScope step = session.step();
  at::Tensor x = torch::linspace(0.5, 1.5, kWidth).to(session.device());
  for (const at::Tensor& each : parameters) x = torch::tanh(product_on(aside, x, each));
  reducer.backward(step, x.mean(), 1);
  {
    const c10::StreamGuard guard(aside);
    std::vector<at::Tensor> others;
    for (int i = 0; i < 64; ++i) others.push_back(at::full_like(parameters[0], 7));
  }
  CHECK(reducer.average(step).finite);
  if (on_stand_in()) CHECK(of_stand_in<std::uint64_t()>("cox_standin_take_races")() == 0);
  session.finish();
}

TEST_CASE(
    "a gradient that comes once more behind its bucket has the step repeated, and is right then") {
  CHECK(repeated_with(Gradient::comes_again) == std::vector{true, false, false});
  // Drops the races of the first step, whose sums are not used.
  if (on_stand_in()) of_stand_in<std::uint64_t()>("cox_standin_take_races")();
}

TEST_CASE("a hook that is called once more for nothing repeats no step") {
  CHECK(repeated_with(Gradient::comes_once) == std::vector{false, false, false});
}
