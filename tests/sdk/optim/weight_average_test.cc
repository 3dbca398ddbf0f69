#include "coxswain/weight_average.h"

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "coxswain/error.h"

#include <doctest/doctest.h>

namespace {

using cox::AveragedWeights;
using cox::NamedTensor;
using cox::WeightAverage;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 5) {
    torch::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(width, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

// Sets other weights and statistics for each step.
void change(Net& net, int step) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  for (at::Tensor& p : net->parameters()) p.add_(torch::randn_like(p), 0.1);
  (void)net->forward(torch::randn({16, net->linear->weight.size(1)}));
}

std::vector<at::Tensor> values(Net& net) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& p : net->parameters()) out.push_back(p.detach().clone());
  for (const at::Tensor& b : net->buffers()) out.push_back(b.clone());
  return out;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = a[i].equal(b[i]);
  return all;
}

std::vector<at::Tensor> tensors(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& one : named) out.push_back(one.tensor);
  return out;
}

TEST_SUITE("sdk.optim.weight_average") {
  TEST_CASE("averages have the bits of a loop over single numbers") {
    for (const bool warm_up : {true, false}) {
      // Long enough for several threads, and odd, so that vectors leave a remainder.
      const at::Tensor p = (torch::manual_seed(1), torch::randn({100003}));
      WeightAverage average({{"p", p}}, {}, {.decay = 0.97, .warm_up = warm_up});
      std::vector<float> wanted(p.const_data_ptr<float>(), p.const_data_ptr<float>() + p.numel());
      for (int t = 0; t < 40; ++t) {
        p.add_(torch::randn_like(p));
        const double warm = (1.0 + t) / (10.0 + t);
        const auto part = static_cast<float>(1 - (warm_up ? std::min(0.97, warm) : 0.97));
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          const float weight = p.const_data_ptr<float>()[i];
          const volatile float step = part * (weight - wanted[i]);  // rounded separately
          wanted[i] += step;
        }
        CHECK(average.next_decay() == (warm_up ? std::min(0.97, warm) : 0.97));
        average.update();
      }
      CHECK(average.updates() == 40);
      const at::Tensor ours = average.averages()[0].tensor;
      CHECK(std::equal(wanted.begin(), wanted.end(), ours.const_data_ptr<float>()));
      CHECK_FALSE(ours.allclose(p));
    }
  }

  TEST_CASE("narrow weights are averaged in fp32 and wide ones in fp64") {
    const at::Tensor narrow = at::ones({4}, at::kBFloat16);
    const at::Tensor wide = at::ones({4}, at::kDouble);
    WeightAverage average({{"narrow", narrow}, {"wide", wide}}, {},
                          {.decay = 0.999, .warm_up = false});
    narrow.fill_(2);
    wide.fill_(2);
    average.update();
    CHECK(average.averages()[0].tensor.allclose(at::full({4}, 1.001)));
    CHECK(average.averages()[1].tensor.allclose(at::full({4}, 1.001, at::kDouble), 1e-14, 0));
    const AveragedWeights scope(average);
    CHECK(narrow.equal(at::full({4}, 1, at::kBFloat16)));  // 1.001 rounded
    CHECK(wide.allclose(at::full({4}, 1.001, at::kDouble), 1e-14, 0));
  }

  TEST_CASE("the model computes with averages inside a scope and is itself again after it") {
    Net net;
    WeightAverage average(*net, {.decay = 0.9});
    for (int step = 0; step < 5; ++step) {
      change(net, step);
      average.update();
    }
    change(net, 5);  // not in the average
    const auto own = values(net);
    const auto averages = tensors(average.averages());
    try {
      const AveragedWeights scope(average);
      CHECK(same(values(net), averages));
      CHECK_FALSE(same(own, averages));
      throw std::runtime_error("evaluation fails");
    } catch (const std::runtime_error&) {
    }
    CHECK(same(values(net), own));
    CHECK(same(tensors(average.averages()), averages));
    for (const at::Tensor& p : net->parameters()) CHECK(p.requires_grad());
  }

  TEST_CASE("buffers are copied, whole numbers included") {
    Net net;
    WeightAverage average(*net);
    change(net, 0);
    average.update();
    change(net, 1);
    const auto all = average.averages();
    const auto steps = std::find_if(all.begin(), all.end(), [](const NamedTensor& one) {
      return one.name == "norm.num_batches_tracked";
    });
    REQUIRE(steps != all.end());
    CHECK(steps->tensor.item<std::int64_t>() == 1);
  }

  TEST_CASE("what was saved goes on with the same bits") {
    Net net;
    WeightAverage whole(*net), first(*net);
    for (int step = 0; step < 4; ++step) {
      change(net, step);
      whole.update();
      first.update();
    }
    WeightAverage second(*net);
    REQUIRE(second.load_state(first.state()).ok());
    CHECK(second.updates() == 4);
    for (int step = 4; step < 8; ++step) {
      change(net, step);
      whole.update();
      second.update();
    }
    CHECK(same(tensors(whole.state()), tensors(second.state())));
    CHECK_FALSE(same(tensors(whole.state()), tensors(first.state())));
  }

  TEST_CASE("another model's state is refused and changes nothing") {
    Net net, wider(7);
    WeightAverage average(*net), other(*wider);
    const auto before = values(net);
    const cox::Status refused = average.load_state(other.state());
    CHECK(refused.message().find("WeightAverage state: the tensors do not fit") == 0);
    CHECK(
        refused.message().find("average.linear.weight (expected Float[4, 5], found Float[4, 7])") !=
        std::string::npos);
    auto negative = average.state();
    negative.back().tensor = at::full({}, -1, at::kLong);
    CHECK(average.load_state(negative).message().find("updates: expected at least 0, found -1") !=
          std::string::npos);
    CHECK(average.updates() == 0);
    CHECK(same(tensors(average.averages()), before));
  }

  TEST_CASE("misuse is refused with what was expected") {
    Net net;
    for (const double decay : {1.0, -0.1}) {
      CHECK_THROWS_WITH_AS(WeightAverage(*net, {.decay = decay}),
                           doctest::Contains("expected decay in [0, 1)"), cox::Error);
    }
    CHECK_THROWS_WITH_AS(WeightAverage({{"ids", at::ones({2}, at::kLong)}}, {}),
                         doctest::Contains("parameter ids: expected a floating type"), cox::Error);
    WeightAverage average(*net);
    const AveragedWeights scope(average);
    CHECK_THROWS_WITH_AS(average.update(), doctest::Contains("an AveragedWeights open"),
                         cox::Error);
    CHECK_THROWS_AS(AveragedWeights{average}, cox::Error);
    CHECK_THROWS_AS((void)average.load_state(average.state()), cox::Error);
  }
}

}  // namespace
