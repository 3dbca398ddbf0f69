#include "tests/bench/n3_tasks.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "sdk/examples/gpt2/model.h"

namespace cox::bench {
namespace {

// Tensors with one sample a row.
class Rows final : public Dataset {
 public:
  Rows(at::Tensor inputs, at::Tensor targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {}
  std::int64_t size() const override { return inputs_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()));
    return {inputs_.index_select(0, rows), targets_.index_select(0, rows),
            static_cast<std::int64_t>(indices.size())};
  }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

// The first `count` samples of a data set, or the rest.
class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> whole, std::int64_t first, std::int64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}
  std::int64_t size() const override { return count_; }
  Batch get(std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> moved(indices.begin(), indices.end());
    for (std::int64_t& index : moved) index += first_;
    return whole_->get(moved);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::int64_t first_;
  std::int64_t count_;
};

void split(Task& task, std::shared_ptr<const Dataset> whole, std::int64_t held_out) {
  const std::int64_t count = whole->size() - held_out;
  task.held_out = whole->get(numbers(count, held_out));
  task.train = std::make_shared<Part>(std::move(whole), 0, count);
}

struct EmbedImpl : torch::nn::Module {
  EmbedImpl(std::int64_t length, std::int64_t width)
      : bytes(register_module("bytes", torch::nn::Embedding(256, width))),
        places(register_module("places", torch::nn::Embedding(length, width))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    return bytes(tokens) + places(at::arange(tokens.size(1), tokens.options()));
  }
  torch::nn::Embedding bytes, places;
};
TORCH_MODULE(Embed);

struct HeadImpl : torch::nn::Module {
  HeadImpl(std::int64_t width, std::int64_t out)
      : norm(register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        project(register_module("project", torch::nn::Linear(width, out))) {}
  at::Tensor forward(const at::Tensor& x) { return project(norm(x)); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear project;
};
TORCH_MODULE(Head);

// Initialises layers as gpt2::Gpt2 does for a whole model.
void initialize_layers(torch::nn::Sequential& model) {
  const at::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    const bool is_projection = item.key().find(".c_") != std::string::npos;
    if (!is_projection) continue;
    if (item.value().dim() >= 2) {
      item.value().normal_(0.0, 0.02);
    } else {
      item.value().zero_();
    }
  }
}

// GPT-2's layers on bytes.
Task text_task(const std::string& file) {
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kLength = 64;
  Task task;
  gpt2::Config config;
  config.n_embd = kWidth;
  config.n_head = 4;
  config.n_layer = 2;
  config.n_positions = kLength;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  task.model->push_back(Embed(kLength, kWidth));
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    task.model->push_back(gpt2::GptLayer(config, layer, gpt2::Attention::fused));
  }
  task.model->push_back(Head(kWidth, 256));
  initialize_layers(task.model);
  const BlockWork layer{12.0 * kWidth * kWidth * kLength, 2.0 * kLength * kLength * kWidth};
  task.work = {{}, layer, layer, {256.0 * kWidth * kLength, 0}};
  task.loss = gpt2::mean_loss;
  const auto whole = std::make_shared<ByteTextDataset>(file, kLength);
  const auto some = std::make_shared<Part>(whole, 0, std::min<std::int64_t>(whole->size(), 4096));
  split(task, some, 64);
  return task;
}

struct MlpImpl : torch::nn::Module {
  MlpImpl(std::int64_t in, std::int64_t out)
      : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::gelu(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Mlp);

// A network taught by another one, with noise on its answers.
Task regression_task() {
  constexpr std::int64_t kIn = 32;
  constexpr std::int64_t kWidth = 128;
  constexpr std::int64_t kOut = 16;
  Task task;
  task.batch = 32;
  task.model->push_back(Mlp(kIn, kWidth));
  task.model->push_back(Mlp(kWidth, kWidth));
  task.model->push_back(Mlp(kWidth, kWidth));
  task.model->push_back(Head(kWidth, kOut));
  task.work = {{1.0 * kIn * kWidth, 0},
               {1.0 * kWidth * kWidth, 0},
               {1.0 * kWidth * kWidth, 0},
               {1.0 * kWidth * kOut, 0}};
  task.loss = [](const at::Tensor& out, const at::Tensor& targets) {
    return torch::mse_loss(out, targets);
  };
  const at::NoGradGuard no_grad;
  const at::Tensor inputs = torch::randn({4096, kIn});
  const at::Tensor hidden = torch::tanh(inputs.matmul(torch::randn({kIn, 64}) / 4));
  const at::Tensor answers = hidden.matmul(torch::randn({64, kOut}) / 8);
  split(task, std::make_shared<Rows>(inputs, answers + 0.3 * torch::randn_like(answers)), 512);
  return task;
}

// Mixes over places, then over channels (Tolstikhin et al., arXiv:2105.01601).
struct MixerImpl : torch::nn::Module {
  MixerImpl(std::int64_t places, std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{width}))),
        over_places(register_module("over_places", torch::nn::Linear(places, places))),
        widen(register_module("widen", torch::nn::Linear(width, 2 * width))),
        narrow(register_module("narrow", torch::nn::Linear(2 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor mixed = x + over_places(norm(x).transpose(1, 2)).transpose(1, 2);
    return mixed + narrow(torch::gelu(widen(norm(mixed))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear over_places, widen, narrow;
};
TORCH_MODULE(Mixer);

struct MeanHeadImpl : torch::nn::Module {
  MeanHeadImpl(std::int64_t width, std::int64_t out)
      : project(register_module("project", torch::nn::Linear(width, out))) {}
  at::Tensor forward(const at::Tensor& x) { return project(x.mean(1)); }
  torch::nn::Linear project;
};
TORCH_MODULE(MeanHead);

// Asks which of ten patterns lies under the noise.
Task mixer_task() {
  constexpr std::int64_t kPlaces = 16;
  constexpr std::int64_t kPatch = 16;
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kClasses = 10;
  Task task;
  task.batch = 32;
  task.model->push_back(torch::nn::Linear(kPatch, kWidth));
  task.model->push_back(Mixer(kPlaces, kWidth));
  task.model->push_back(Mixer(kPlaces, kWidth));
  task.model->push_back(MeanHead(kWidth, kClasses));
  const BlockWork mixer{1.0 * kPlaces * kPlaces * kWidth + 4.0 * kWidth * kWidth * kPlaces, 0};
  task.work = {{1.0 * kPatch * kWidth * kPlaces, 0}, mixer, mixer, {1.0 * kWidth * kClasses, 0}};
  task.loss = [](const at::Tensor& out, const at::Tensor& targets) {
    return torch::cross_entropy_loss(out, targets);
  };
  const at::NoGradGuard no_grad;
  const at::Tensor patterns = torch::randn({kClasses, kPlaces, kPatch});
  const at::Tensor targets = torch::randint(kClasses, {4096}, at::kLong);
  const at::Tensor inputs =
      patterns.index_select(0, targets) + 4.5 * torch::randn({4096, kPlaces, kPatch});
  split(task, std::make_shared<Rows>(inputs, targets), 1024);
  return task;
}

// A convolution, its statistics, and a rectifier.
struct UnitImpl : torch::nn::Module {
  UnitImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv(register_module(
            "conv",
            torch::nn::Conv2d(
                torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::relu(norm(conv(x))); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(Unit);

// Two units with a skip around them (He et al., arXiv:1512.03385).
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(std::int64_t width)
      : first(register_module("first", Unit(width, width, 1))),
        second(register_module("second", Unit(width, width, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return x + second(first(x)); }
  Unit first, second;
};
TORCH_MODULE(Residual);

struct PooledHeadImpl : torch::nn::Module {
  PooledHeadImpl(std::int64_t width, std::int64_t out)
      : project(register_module("project", torch::nn::Linear(width, out))) {}
  at::Tensor forward(const at::Tensor& x) { return project(x.mean({2, 3})); }
  torch::nn::Linear project;
};
TORCH_MODULE(PooledHead);

// Asks which of ten shifted images lies under the noise.
Task resnet_task() {
  constexpr std::int64_t kSide = 12;
  constexpr std::int64_t kWidth = 16;
  constexpr std::int64_t kClasses = 10;
  Task task;
  task.batch = 32;
  task.model->push_back(Unit(3, kWidth, 1));
  task.model->push_back(Residual(kWidth));
  task.model->push_back(Unit(kWidth, 2 * kWidth, 2));
  task.model->push_back(Residual(2 * kWidth));
  task.model->push_back(PooledHead(2 * kWidth, kClasses));
  const auto unit = [](std::int64_t in, std::int64_t out, std::int64_t side) {
    return 9.0 * static_cast<double>(in * out * side * side);
  };
  task.work = {{unit(3, kWidth, kSide), 0},
               {2 * unit(kWidth, kWidth, kSide), 0},
               {unit(kWidth, 2 * kWidth, kSide / 2), 0},
               {2 * unit(2 * kWidth, 2 * kWidth, kSide / 2), 0},
               {2.0 * kWidth * kClasses, 0}};
  task.loss = [](const at::Tensor& out, const at::Tensor& targets) {
    return torch::cross_entropy_loss(out, targets);
  };
  const at::NoGradGuard no_grad;
  const at::Tensor patterns = torch::randn({kClasses, 3, kSide, kSide});
  const at::Tensor targets = torch::randint(kClasses, {4096}, at::kLong);
  const at::Tensor inputs = patterns.index_select(0, targets).roll({3, 5}, {2, 3}) +
                            6.0 * torch::randn({4096, 3, kSide, kSide});
  split(task, std::make_shared<Rows>(inputs, targets), 1024);
  return task;
}

}  // namespace

Task make_task(const std::string& name, std::uint64_t seed, const std::string& text) {
  torch::manual_seed(seed);
  Task task;
  if (name == "text" || name == "adopted text") {
    task = text_task(text);
  } else if (name == "adopted resnet") {
    task = resnet_task();
  } else if (name == "regression") {
    task = regression_task();
  } else if (name == "mixer") {
    task = mixer_task();
  } else {
    throw std::runtime_error("expected a task of kTasks, found " + name);
  }
  task.name = name;
  return task;
}

}  // namespace cox::bench
