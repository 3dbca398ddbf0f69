#include "sdk/examples/models/models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <utility>

namespace plain_models {
namespace {

using at::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

// SeedScope seeds the default generator and restores the generator at the end.
class SeedScope {
 public:
  explicit SeedScope(std::uint64_t seed)
      : generator_(at::detail::getDefaultCPUGenerator()), before_(generator_.get_state()) {
    generator_.set_current_seed(seed);
  }
  ~SeedScope() { generator_.set_state(before_); }
  SeedScope(const SeedScope&) = delete;
  SeedScope& operator=(const SeedScope&) = delete;

 private:
  at::Generator generator_;
  Tensor before_;
};

template <class Model, class... Arguments>
std::shared_ptr<Model> seeded(std::uint64_t seed, const Arguments&... arguments) {
  const SeedScope scope(seed);
  return std::make_shared<Model>(arguments...);
}

at::Generator batch_generator(std::uint64_t batch_seed) {
  return at::detail::createCPUGenerator(batch_seed);
}

// ---- ResNet

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false));
}

struct ResidualImpl : nn::Module {
  ResidualImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", conv(out, out, 3))),
        bn2(register_module("bn2", nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    shortcut =
        register_module("shortcut", nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = bn1->forward(conv1->forward(x)).relu_();
    y = bn2->forward(conv2->forward(y));
    y += shortcut.is_empty() ? x : shortcut->forward(x);
    return y.relu_();
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Residual);

struct ResNet : nn::Module {
  ResNet()
      : conv1(register_module("conv1", conv(3, 8, 3))),
        bn1(register_module("bn1", nn::BatchNorm2d(8))),
        layer1(register_module("layer1", nn::Sequential(Residual(8, 8, 1), Residual(8, 8, 1)))),
        layer2(register_module("layer2", nn::Sequential(Residual(8, 16, 2), Residual(16, 16, 1)))),
        fc(register_module("fc", nn::Linear(16, 10))) {}

  Tensor forward(const Tensor& images) {
    Tensor x = bn1->forward(conv1->forward(images)).relu_();
    x = layer2->forward(layer1->forward(x));
    return fc->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Sequential layer1, layer2;
  nn::Linear fc;
};

// ---- DCGAN

nn::ConvTranspose2d grow(std::int64_t in, std::int64_t out, std::int64_t stride,
                         std::int64_t padding) {
  return nn::ConvTranspose2d(
      nn::ConvTranspose2dOptions(in, out, 4).stride(stride).padding(padding).bias(false));
}

struct GeneratorImpl : nn::Module {
  GeneratorImpl()
      : conv1(register_module("conv1", grow(6, 16, 1, 0))),
        norm1(register_module("norm1", nn::BatchNorm2d(16))),
        conv2(register_module("conv2", grow(16, 8, 2, 1))),
        norm2(register_module("norm2", nn::BatchNorm2d(8))),
        conv3(register_module("conv3", grow(8, 1, 2, 1))) {}

  Tensor forward(const Tensor& noise) {
    Tensor x = norm1->forward(conv1->forward(noise)).relu_();
    x = norm2->forward(conv2->forward(x)).relu_();
    return conv3->forward(x).tanh_();
  }

  nn::ConvTranspose2d conv1;
  nn::BatchNorm2d norm1;
  nn::ConvTranspose2d conv2;
  nn::BatchNorm2d norm2;
  nn::ConvTranspose2d conv3;
};
TORCH_MODULE(Generator);

nn::Conv2d shrink(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 4).stride(stride).padding(padding).bias(false));
}

nn::Sequential discriminator_layers() {
  const auto leaky = nn::LeakyReLUOptions().negative_slope(0.2).inplace(true);
  return nn::Sequential(shrink(1, 8, 2, 1), nn::LeakyReLU(leaky), shrink(8, 16, 2, 1),
                        nn::BatchNorm2d(16), nn::LeakyReLU(leaky), shrink(16, 1, 1, 0),
                        nn::Sigmoid());
}

struct Dcgan : nn::Module {
  Dcgan()
      : generator(register_module("generator", Generator())),
        discriminator(register_module("discriminator", discriminator_layers())) {}

  Tensor judge(const Tensor& images, double label) {
    const Tensor judged = discriminator->forward(images).flatten();
    return at::binary_cross_entropy(judged, at::full_like(judged, label));
  }

  // Returns the sum of both losses. Each network's parameters get the gradients of its own loss;
  // the discriminator's also get those of the generator's loss.
  Tensor losses(const Tensor& real, const Tensor& noise) {
    const Tensor fake = generator->forward(noise);
    return judge(real, 0.9) + judge(fake.detach(), 0.0) + judge(fake, 1.0);
  }

  Generator generator;
  nn::Sequential discriminator;
};

// ---- U-Net

struct TwoConvsImpl : nn::Module {
  TwoConvsImpl(std::int64_t in, std::int64_t out)
      : first(register_module("first", conv(in, out, 3))),
        norm(register_module("norm", nn::BatchNorm2d(out))),
        second(register_module("second", conv(out, out, 3))) {}

  Tensor forward(const Tensor& x) {
    return at::relu(second->forward(norm->forward(first->forward(x)).relu_()));
  }

  nn::Conv2d first;
  nn::BatchNorm2d norm;
  nn::Conv2d second;
};
TORCH_MODULE(TwoConvs);

struct UNet : nn::Module {
  UNet()
      : down(register_module("down", nn::ModuleList(TwoConvs(1, 8), TwoConvs(8, 16)))),
        middle(register_module("middle", TwoConvs(16, 24))),
        up(register_module("up", nn::ModuleList(TwoConvs(40, 16), TwoConvs(24, 8)))),
        head(register_module("head", nn::Conv2d(nn::Conv2dOptions(8, 1, 1)))) {}

  Tensor forward(Tensor x) {
    std::vector<Tensor> skips;
    for (const auto& level : *down) {
      skips.push_back(level->as<TwoConvsImpl>()->forward(x));
      x = at::max_pool2d(skips.back(), 2);
    }
    x = middle->forward(x);
    const auto twice = F::InterpolateFuncOptions().scale_factor({{2.0, 2.0}}).mode(torch::kNearest);
    for (const auto& level : *up) {
      x = at::cat({F::interpolate(x, twice), skips.back()}, 1);
      skips.pop_back();
      x = level->as<TwoConvsImpl>()->forward(x);
    }
    return head->forward(x);
  }

  nn::ModuleList down;
  TwoConvs middle;
  nn::ModuleList up;
  nn::Conv2d head;
};

// ---- LSTM language model

struct LstmModel : nn::Module {
  static constexpr std::int64_t kWords = 29;
  static constexpr std::int64_t kBatch = 5;
  static constexpr std::int64_t kNoWord = -100;  // the target that cross_entropy ignores

  LstmModel()
      : words(register_module("words", nn::Embedding(kWords, 16))),
        lstm(register_module(
            "lstm",
            nn::LSTM(nn::LSTMOptions(16, 24).num_layers(2).dropout(0.2).batch_first(true)))),
        drop(register_module("drop", nn::Dropout(0.2))),
        head(register_module("head", nn::Linear(24, kWords))) {}

  Tensor forward(const Tensor& tokens, const Tensor& lengths) {
    namespace rnn = nn::utils::rnn;
    const auto packed = rnn::pack_padded_sequence(words->forward(tokens), lengths, true, false);
    const auto states = std::get<0>(lstm->forward_with_packed_input(packed));
    const auto padded = rnn::pad_packed_sequence(states, true, 0.0, tokens.size(1));
    return head->forward(drop->forward(std::get<0>(padded)));
  }

  nn::Embedding words;
  nn::LSTM lstm;
  nn::Dropout drop;
  nn::Linear head;
};

// ---- GPT-2

struct GptLayerImpl : nn::Module {
  GptLayerImpl(std::int64_t width, std::int64_t number, double p)
      : ln_1(register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        c_attn(register_module("c_attn", nn::Linear(width, 3 * width))),
        c_proj(register_module("c_proj", nn::Linear(width, width))),
        ln_2(register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        fc(register_module("fc", nn::Linear(width, 4 * width))),
        proj(register_module("proj", nn::Linear(4 * width, width))),
        heads(number),
        dropout(p) {}

  Tensor forward(Tensor x) {
    x = x + dropped(c_proj->forward(attend(c_attn->forward(ln_1->forward(x)))));
    const Tensor inner = at::gelu(fc->forward(ln_2->forward(x)), "tanh");
    return x + dropped(proj->forward(inner));
  }

  Tensor attend(const Tensor& qkv) const {
    const auto batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
    std::vector<Tensor> parts = qkv.split(width, 2);
    for (Tensor& part : parts) part = part.view({batch, length, heads, -1}).transpose(1, 2);
    const double p = is_training() ? dropout : 0;
    const Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, p, /*is_causal=*/true);
    return mixed.transpose(1, 2).contiguous().view({batch, length, width});
  }

  Tensor dropped(const Tensor& x) const {
    return dropout > 0 ? at::dropout(x, dropout, is_training()) : x;
  }

  nn::LayerNorm ln_1;
  nn::Linear c_attn, c_proj;
  nn::LayerNorm ln_2;
  nn::Linear fc, proj;
  std::int64_t heads;
  double dropout;
};
TORCH_MODULE(GptLayer);

struct Gpt2 : nn::Module {
  static constexpr std::int64_t kWords = 31;
  static constexpr std::int64_t kWidth = 32;
  static constexpr std::int64_t kLength = 12;

  explicit Gpt2(double p)
      : wte(register_module("wte", nn::Embedding(kWords, kWidth))),
        wpe(register_module("wpe", nn::Embedding(kLength, kWidth))),
        h(register_module("h", nn::ModuleList())),
        ln_f(register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        dropout(p) {
    for (int layer = 0; layer < 3; ++layer) h->push_back(GptLayer(kWidth, 4, p));
    const at::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      if (parameter.dim() > 1) nn::init::normal_(parameter, 0, 0.02);
    }
  }

  Tensor forward(const Tensor& tokens) {
    const Tensor places = at::arange(tokens.size(1), at::kLong);
    Tensor x = wte->forward(tokens) + wpe->forward(places);
    if (dropout > 0) x = at::dropout(x, dropout, is_training());
    for (const auto& layer : *h) x = layer->as<GptLayerImpl>()->forward(x);
    return at::linear(ln_f->forward(x), wte->weight);
  }

  nn::Embedding wte, wpe;
  nn::ModuleList h;
  nn::LayerNorm ln_f;
  double dropout;
};

// ---- TorchScript

constexpr const char* kCell = R"JIT(
def cell(x, h, w, u, b):
    mixed = torch.matmul(x, w) + torch.matmul(h, u) + b
    gate = torch.sigmoid(mixed)
    for i in range(3):
        if i % 2 == 0:
            h = gate * h + (1 - gate) * torch.tanh(mixed)
        else:
            h = h - 0.1 * torch.relu(h)
    return h
)JIT";

struct Scripted : nn::Module {
  static constexpr std::int64_t kInputs = 8;
  static constexpr std::int64_t kWidth = 16;

  Scripted()
      : encode(register_module("encode", nn::Linear(kInputs, kWidth))),
        w(register_parameter("w", at::randn({kWidth, kWidth}) * 0.2)),
        u(register_parameter("u", at::randn({kWidth, kWidth}) * 0.2)),
        b(register_parameter("b", at::zeros({kWidth}))),
        head(register_module("head", nn::Linear(nn::LinearOptions(kWidth, 1).bias(false)))),
        script(torch::jit::compile(kCell)) {}

  // `sequence` is {batch, length, inputs}.
  Tensor forward(const Tensor& sequence) {
    Tensor h = at::zeros({sequence.size(0), kWidth});
    for (const Tensor& x : encode->forward(sequence).unbind(1)) h = step(x, h);
    return head->forward(h).squeeze(1);
  }

  Tensor step(const Tensor& x, const Tensor& h) {
    const torch::jit::GraphOptimizerEnabledGuard plain(false);
    return script->run_method("cell", x, h, w, u, b).toTensor();
  }

  nn::Linear encode;
  Tensor w, u, b;
  nn::Linear head;
  std::shared_ptr<torch::jit::CompilationUnit> script;
};

constexpr std::int64_t kScriptWidth = 16;

constexpr const char* kScriptLayer = R"JIT(
def forward(self, x):
    inner = torch.gelu(torch.linear(x, self.weight, self.bias))
    return x + torch.dropout(inner, 0.1, self.training)
)JIT";

constexpr const char* kScript = R"JIT(
def forward(self, x):
    x = self.third.forward(self.second.forward(self.first.forward(x)))
    return torch.mv(x, self.head)
)JIT";

void add_parameter(torch::jit::Module& script, const char* name, const Tensor& value) {
  script.register_parameter(name, value.set_requires_grad(true), /*is_buffer=*/false);
}

torch::jit::Module script_layer() {
  torch::jit::Module layer("Layer");
  add_parameter(layer, "weight", at::randn({kScriptWidth, kScriptWidth}) * 0.3);
  add_parameter(layer, "bias", at::zeros({kScriptWidth}));
  layer.register_attribute("training", c10::BoolType::get(), true);
  layer.define(kScriptLayer);
  return layer;
}

// ---- A field on a grid

struct Field : nn::Module {
  static constexpr std::int64_t kSide = 12;  // side of the grid, without the border
  static constexpr std::int64_t kSteps = 4;

  Field()
      : log_viscosity(register_parameter("log_viscosity", at::full({1}, -2.0))),
        closure(register_module(
            "closure", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 6, 3).padding(1)), nn::Tanh(),
                                      nn::Conv2d(nn::Conv2dOptions(6, 1, 3).padding(1))))),
        wall(register_buffer("wall", at::zeros({kSide, kSide}, at::kBool))),
        energy(register_buffer("energy", at::zeros({}))) {
    wall.slice(0, 4, 7).slice(1, 5, 8).fill_(true);
  }

  // Returns the states after each step, {steps, batch, side, side}.
  Tensor forward(const Tensor& start) {
    Tensor field = at::zeros({start.size(0), kSide + 2, kSide + 2});
    Tensor path = at::empty({kSteps, start.size(0), kSide, kSide});
    Tensor inner = field.narrow(1, 1, kSide).narrow(2, 1, kSide);
    inner.copy_(start);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      fill_border(field);
      inner += change(field, inner.clone());
      inner.masked_fill_(wall, 0);
      path[step].copy_(inner);
    }
    return path;
  }

  // Each border takes the values of the opposite side.
  static void fill_border(const Tensor& field) {
    for (const std::int64_t dim : {1, 2}) {
      field.select(dim, 0).copy_(field.select(dim, kSide));
      field.select(dim, kSide + 1).copy_(field.select(dim, 1));
    }
  }

  // `now` is a copy of the field without its border. Products must use `now`: autograd keeps
  // factors, and the field itself changes.
  Tensor change(const Tensor& field, const Tensor& now) {
    const auto beside = [&](std::int64_t y, std::int64_t x) {
      return field.narrow(1, 1 + y, kSide).narrow(2, 1 + x, kSide);
    };
    const Tensor spread = beside(-1, 0) + beside(1, 0) + beside(0, -1) + beside(0, 1) - 4 * now;
    const Tensor slope = (now.roll(-1, 2) - now.roll(1, 2)) * 0.5;
    Tensor rate = log_viscosity.exp() * spread;
    rate -= now * slope;
    rate += closure->forward(at::stack({now, slope}, 1)).squeeze(1);
    return rate.mul_(time_step(now));
  }

  // The faster the field, the shorter the step.
  Tensor time_step(const Tensor& now) {
    const at::NoGradGuard no_grad;
    energy.mul_(0.9).add_(now.square().mean(), 0.1);
    return 0.2 / (1 + now.abs().max());
  }

  Tensor log_viscosity;
  nn::Sequential closure;
  Tensor wall, energy;
};

}  // namespace

ModelCase make_resnet(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<ResNet>(seed);
  return {"resnet", model, [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor images = at::randn({6 * times, 3, 12, 12}, generator);
            const Tensor labels = at::randint(10, {6 * times}, generator, at::kLong);
            return at::cross_entropy_loss(model->forward(images), labels);
          }};
}

ModelCase make_dcgan(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<Dcgan>(seed);
  return {"dcgan", model, [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor real = at::randn({6 * times, 1, 16, 16}, generator).tanh_();
            return model->losses(real, at::randn({6 * times, 6, 1, 1}, generator));
          }};
}

std::vector<ModelCase> make_dcgan_players(std::uint64_t seed, std::int64_t times) {
  const auto both = seeded<Dcgan>(seed);
  const auto noise = [times](std::uint64_t batch_seed) {
    return at::randn({6 * times, 6, 1, 1}, batch_generator(batch_seed + 1'000'000));
  };
  const auto discriminator_loss = [both, noise, times](std::uint64_t batch_seed) {
    const Tensor real = at::randn({6 * times, 1, 16, 16}, batch_generator(batch_seed)).tanh_();
    const Tensor fake = both->generator->forward(noise(batch_seed)).detach();
    return both->judge(real, 0.9) + both->judge(fake, 0.0);
  };
  const auto generator_loss = [both, noise](std::uint64_t batch_seed) {
    return both->judge(both->generator->forward(noise(batch_seed)), 1.0);
  };
  return {{"discriminator", both->discriminator.ptr(), discriminator_loss},
          {"generator", both->generator.ptr(), generator_loss}};
}

ModelCase make_unet(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<UNet>(seed);
  return {"unet", model, [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor images = at::randn({3 * times, 1, 16, 16}, generator);
            const Tensor mask = at::avg_pool2d(images, 3, 1, 1).gt(0).to(at::kFloat);
            return at::binary_cross_entropy_with_logits(model->forward(images), mask);
          }};
}

ModelCase make_lstm(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<LstmModel>(seed);
  return {
      "lstm", model, [model, times](std::uint64_t batch_seed) {
        const at::Generator generator = batch_generator(batch_seed);
        const std::int64_t batch = LstmModel::kBatch * times;
        const auto most = at::randint(5, 11, {}, generator, at::kLong).item<std::int64_t>();
        const auto on_host = at::TensorOptions(at::kLong).device(at::kCPU);  // for packing
        const Tensor lengths = at::randint(2, most + 1, {batch}, generator, on_host);
        const Tensor text = at::randint(LstmModel::kWords, {batch, most + 1}, generator, at::kLong);
        const Tensor beyond =
            at::arange(most, text.options()).ge(lengths.to(text.device()).unsqueeze(1));
        const Tensor next = text.narrow(1, 1, most).masked_fill(beyond, LstmModel::kNoWord);
        const Tensor scores = model->forward(text.narrow(1, 0, most), lengths);
        return at::cross_entropy_loss(scores.flatten(0, 1), next.flatten(), {}, at::Reduction::Mean,
                                      LstmModel::kNoWord);
      }};
}

ModelCase make_gpt2(std::uint64_t seed, double dropout, std::int64_t times) {
  auto model = seeded<Gpt2>(seed, dropout);
  return {dropout > 0 ? "gpt2" : "gpt2_without_dropout", model,
          [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor text =
                at::randint(Gpt2::kWords, {4 * times, Gpt2::kLength + 1}, generator, at::kLong);
            const Tensor scores = model->forward(text.narrow(1, 0, Gpt2::kLength));
            const Tensor next = text.narrow(1, 1, Gpt2::kLength);
            return at::cross_entropy_loss(scores.flatten(0, 1), next.flatten());
          }};
}

ModelCase make_scripted(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<Scripted>(seed);
  return {"scripted", model, [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor sequence = at::randn({6 * times, 5, Scripted::kInputs}, generator);
            return at::mse_loss(model->forward(sequence), sequence.sum({1, 2}).tanh());
          }};
}

void write_script(const std::string& path, std::uint64_t seed) {
  const SeedScope scope(seed);
  torch::jit::Module script("Residual");
  for (const char* name : {"first", "second", "third"})
    script.register_module(name, script_layer());
  add_parameter(script, "head", at::randn({kScriptWidth}) * 0.3);
  script.define(kScript);
  script.save(path);
}

Tensor loss_of_script(torch::jit::Module& script, std::uint64_t batch_seed, std::int64_t times) {
  const Tensor x = at::randn({32 * times, kScriptWidth}, batch_generator(batch_seed));
  return at::mse_loss(script.forward({x}).toTensor(), x.sum(1).tanh());
}

ModelCase make_field(std::uint64_t seed, std::int64_t times) {
  auto model = seeded<Field>(seed);
  return {"field", model, [model, times](std::uint64_t batch_seed) {
            const at::Generator generator = batch_generator(batch_seed);
            const Tensor start = at::randn({3 * times, Field::kSide, Field::kSide}, generator);
            const Tensor decay = at::linspace(0.9, 0.6, Field::kSteps).view({-1, 1, 1, 1});
            return at::mse_loss(model->forward(start), start.unsqueeze(0) * decay);
          }};
}

ModelCase model_at(std::size_t place, std::uint64_t seed, std::int64_t times) {
  switch (place) {
    case 0:
      return make_resnet(seed, times);
    case 1:
      return make_dcgan(seed, times);
    case 2:
      return make_unet(seed, times);
    case 3:
      return make_lstm(seed, times);
    case 4:
      return make_gpt2(seed, 0.1, times);
    case 5:
      return make_scripted(seed, times);
    default:
      return make_field(seed, times);
  }
}

std::vector<ModelCase> all_models(std::uint64_t seed, std::int64_t times) {
  std::vector<ModelCase> models;
  for (std::size_t place = 0; place < kModels; ++place)
    models.push_back(model_at(place, seed, times));
  return models;
}

}  // namespace plain_models
