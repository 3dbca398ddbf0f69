// Number formats on a device. A narrow block computes like LibTorch's autocast, blocks of different
// formats meet, and recompute gives the same bits.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "small_text.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kRows = 8, kWidth = 16;

// Records the types of its parts.
struct PartsImpl : torch::nn::Module {
  PartsImpl() {
    torch::manual_seed(3);
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) {
      layers->push_back(
          torch::nn::Sequential(torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}),
                                torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor loss(at::Tensor x) {
    types.clear();
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = torch::gelu(layers->at<torch::nn::SequentialImpl>(i).forward(x));
      types.push_back(x.scalar_type());
      const torch::NoGradGuard no_grad;  // an untrained statistic
      const at::Tensor& weight = layers->at<torch::nn::SequentialImpl>(i).parameters().back();
      last_seen = at::matmul(x, weight).sum();
    }
    return at::mse_loss(x, at::zeros_like(x));
  }
  torch::nn::ModuleList layers;
  std::vector<at::ScalarType> types;
  at::Tensor last_seen;
};
TORCH_MODULE(Parts);

at::Tensor input(at::Device device) {
  return torch::linspace(-1, 1, kRows * kWidth).view({kRows, kWidth}).to(device);
}

struct TrainedOnDevice {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
  std::vector<at::ScalarType> types;
};

template <class Step>
TrainedOnDevice train(Parts& model, at::Device device, const Step& step) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  TrainedOnDevice outcome;
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = step([&] { return model->loss(input(device)); });
    loss.backward();
    optimizer.step();
    outcome.losses.push_back(loss.item<double>());
  }
  outcome.types = model->types;
  outcome.parameters = on_cpu(*model);
  return outcome;
}

TrainedOnDevice train_adopted(std::vector<std::string> flags) {
  flags.push_back("--cox.run.device=cuda");
  auto session = solo_session(flags);
  Parts model;
  model->to(session.device());
  session.adopt(*model);
  TrainedOnDevice outcome = train(model, session.device(), [](const auto& loss) { return loss(); });
  session.finish();
  return outcome;
}

TrainedOnDevice train_under_autocast(at::ScalarType type) {
  auto session = solo_session({"--cox.run.device=cuda"});  // LibTorch's library may be missing
  Parts model;
  model->to(session.device());
  at::autocast::set_autocast_cache_enabled(false);
  TrainedOnDevice outcome = train(model, session.device(), [&](const auto& loss) {
    at::autocast::set_autocast_dtype(at::kCUDA, type);
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    const at::Tensor value = loss();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    return value;
  });
  at::autocast::set_autocast_cache_enabled(true);
  session.finish();
  return outcome;
}

const std::string kFormat = "--cox.precision.format=";

// Packed sequences: the last rows of a batch belong to one text, so they form a vector.
struct TextsOfOtherLengths {
  explicit TextsOfOtherLengths(Session& session) {
    torch::manual_seed(5);
    struct NetImpl : torch::nn::Module {
      torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 8));
      torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(8, 8));
      torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 1));
    };
    const auto net = std::make_shared<NetImpl>();
    net->to(session.device());
    session.adopt(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    const at::Tensor x = torch::linspace(-1, 1, 5 * 3 * 6).view({5, 3, 6}).to(session.device());
    const at::Tensor lengths =
        torch::tensor({5, 3, 2}, torch::TensorOptions().dtype(at::kLong).device(at::kCPU));
    for (int i = 0; i < 6; ++i) {
      optimizer.zero_grad();
      const auto packed = torch::nn::utils::rnn::pack_padded_sequence(net->in(x), lengths);
      const at::Tensor last =
          std::get<0>(std::get<1>(net->lstm->forward_with_packed_input(packed)));
      const at::Tensor judged = torch::sigmoid(net->out(last.view({3, 8})));
      const at::Tensor loss = torch::binary_cross_entropy(judged, at::full_like(judged, 0.9));
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
  }
  std::vector<double> losses;
};

}  // namespace

TEST_CASE("on a device a narrow format is LibTorch's autocast, to the last bit") {
  const TrainedOnDevice here = train_adopted({kFormat + "bf16"});
  const TrainedOnDevice there = train_under_autocast(at::kBFloat16);
  CHECK(here.types == std::vector<at::ScalarType>(3, at::kBFloat16));
  CHECK(here.types == there.types);
  CHECK(here.losses == there.losses);
  CHECK(count_unequal(here.parameters, there.parameters) == 0);
}

TEST_CASE("a block that stays in float beside narrow ones computes in float") {
  const TrainedOnDevice mixed =
      train_adopted({kFormat + "bf16", "--cox.precision.force=layers.1=fp32"});
  CHECK(mixed.types == std::vector<at::ScalarType>{at::kBFloat16, at::kFloat, at::kBFloat16});
  CHECK(mixed.losses.back() < mixed.losses.front());
}

TEST_CASE("a convolution with a bias runs in fp8 behind a narrow block, and in an evaluation") {
  auto session = solo_session({"--cox.run.device=cuda", kFormat + "fp8",
                               "--cox.precision.emulate=on", "--cox.precision.force=0=bf16"});
  torch::manual_seed(4);
  torch::nn::Sequential model;
  for (const std::int64_t channels : {1, 4, 4})
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 4, 3)));
  model->to(session.device());
  session.adopt(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const at::Tensor x =
      torch::linspace(-1, 1, 2 * 12 * 12).view({2, 1, 12, 12}).to(session.device());
  std::vector<double> losses;
  for (int i = 0; i < 8; ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(x).to(at::kFloat) - 0.5).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
    const torch::NoGradGuard no_grad;
    CHECK(std::isfinite(model->forward(x).sum().item<double>()));
  }
  CHECK(losses.back() < losses.front());
  CHECK(session.plan().precision.at(2) == Precision::fp8);
  session.finish();
}

TEST_CASE("an LSTM over texts of other lengths, and a binary cross entropy, run in every format") {
  for (const std::string format : {"bf16", "fp16", "fp8"}) {
    CAPTURE(format);
    auto session =
        solo_session({"--cox.run.device=cuda", kFormat + format, "--cox.precision.emulate=on"});
    const TextsOfOtherLengths outcome(session);
    CHECK(outcome.losses.back() < outcome.losses.front());
    session.finish();
  }
}

TEST_CASE("blocks of different formats have the same bits when they are recomputed or offloaded") {
  const std::vector<std::string> formats = {kFormat + "bf16",
                                            "--cox.precision.force=layers.1=fp32,layers.2=fp16"};
  const TrainedOnDevice kept = train_adopted(formats);
  for (const std::string action : {"recompute", "offload"}) {
    CAPTURE(action);
    std::vector<std::string> flags = formats;
    flags.insert(flags.end(), {"--cox.memory.force=*=" + action, "--cox.memory.smallest_bytes=1"});
    const TrainedOnDevice other = train_adopted(flags);
    CHECK(other.losses == kept.losses);
    CHECK(count_unequal(other.parameters, kept.parameters) == 0);
  }
}
