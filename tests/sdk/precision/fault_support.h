// Shared parts of the tests of blame: a fault for a layer, and five models whose layers accept
// faults. A fault is one wrong value among a layer's operators or in its result, forward or
// backward.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "sdk/examples/gpt2/model.h"
#include "sdk/src/precision/block_health.h"

namespace fault_test {

using at::Tensor;

enum class Place { inside, result };

struct Fault {
  enum class Pass { none, forward, backward };
  enum class Kind { infinity, nan, overflow };  // overflow: finite, but not in the format
  Pass pass = Pass::none;
  Kind kind = Kind::infinity;
  Place place = Place::result;
  std::int64_t element = 0;  // modulo the size
  at::ScalarType format = at::kFloat;
};

// Returns the value in the given format.
inline double value_of(const Fault& fault) {
  if (fault.kind == Fault::Kind::nan) return std::numeric_limits<double>::quiet_NaN();
  if (fault.kind == Fault::Kind::infinity) return std::numeric_limits<double>::infinity();
  const bool is_wide = fault.format == at::kBFloat16 || fault.format == at::kFloat;
  const at::Tensor large = at::full({1}, is_wide ? 3.4e38 : 1e6, at::kFloat);
  const at::Tensor result = fault.format == at::kFloat ? large * 10 : large;
  return result.to(fault.format).to(at::kDouble).item<double>();
}

inline Tensor spoiled(const Tensor& tensor, const Fault& fault) {
  Tensor copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
  copy.view({-1})[fault.element % copy.numel()].fill_(value_of(fault));
  return copy;
}

struct Spoil : torch::autograd::Function<Spoil> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, Fault fault) {
    context->saved_data["pass"] = static_cast<std::int64_t>(fault.pass);
    context->saved_data["kind"] = static_cast<std::int64_t>(fault.kind);
    context->saved_data["element"] = fault.element;
    context->saved_data["format"] = static_cast<std::int64_t>(fault.format);
    return fault.pass == Fault::Pass::forward ? spoiled(x, fault) : x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(context->saved_data["kind"].toInt());
    fault.element = context->saved_data["element"].toInt();
    fault.format = static_cast<at::ScalarType>(context->saved_data["format"].toInt());
    const auto pass = static_cast<Fault::Pass>(context->saved_data["pass"].toInt());
    const bool is_here = pass == Fault::Pass::backward;
    return {is_here ? spoiled(gradients[0], fault) : gradients[0], Tensor()};
  }
};

inline Tensor pass_through(const Tensor& x, const Fault& fault, Place here) {
  if (fault.pass == Fault::Pass::none || fault.place != here) return x;
  return Spoil::apply(x, fault);
}

// Layers with a fault among their operators or in their result.
struct DenseLayerImpl : torch::nn::Module {
  explicit DenseLayerImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))) {}
  Tensor forward(const Tensor& x, const Fault& fault) {
    const Tensor y = pass_through(up->forward(x), fault, Place::inside);
    return pass_through(down->forward(torch::relu(y)), fault, Place::result);
  }
  torch::nn::Linear up, down;
};
TORCH_MODULE(DenseLayer);

struct ConvLayerImpl : torch::nn::Module {
  explicit ConvLayerImpl(std::int64_t in)
      : conv(register_module("conv",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 3, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))) {}
  Tensor forward(const Tensor& x, const Fault& fault) {
    const Tensor y = pass_through(conv->forward(x), fault, Place::inside);
    return pass_through(torch::relu(norm->forward(y)), fault, Place::result);
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvLayer);

// A model, as a function from one fault for each visit of a block to a loss.
struct Victim {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const std::vector<Fault>&)> loss;
  std::vector<std::string> called;  // the block of each visit that can have a fault
};

template <class Layer>
Victim chain_victim(std::vector<Layer> layers, const Tensor& input) {
  auto net = std::make_shared<torch::nn::Module>("chain");
  std::vector<std::string> names;
  for (const Layer& layer : layers) {
    names.push_back("layer" + std::to_string(names.size()));
    net->register_module(names.back(), layer);
  }
  const auto loss = [layers, input](const std::vector<Fault>& faults) mutable {
    Tensor x = input;
    for (std::size_t b = 0; b < layers.size(); ++b) x = layers[b]->forward(x, faults[b]);
    return x.to(at::kFloat).pow(2).mean();
  };
  return {net, loss, names};
}

inline Victim mlp() {
  return chain_victim<DenseLayer>({DenseLayer(8), DenseLayer(8), DenseLayer(8), DenseLayer(8)},
                                  torch::linspace(-1, 1, 40).view({5, 8}));
}

inline Victim conv_net() {
  return chain_victim<ConvLayer>({ConvLayer(1), ConvLayer(3), ConvLayer(3)},
                                 torch::linspace(-2, 2, 72).view({2, 1, 6, 6}));
}

inline std::vector<DenseLayer> named_layers(torch::nn::Module& net) {
  std::vector<DenseLayer> layers;
  for (const char* name : {"a", "b", "c"}) {
    layers.push_back(net.register_module(name, DenseLayer(8)));
  }
  return layers;
}

// Returns a net with skips, a block with two inputs, and two blocks that are visited twice.
inline Victim graph() {
  auto net = std::make_shared<torch::nn::Module>("graph");
  const auto loss = [layers = named_layers(*net)](const std::vector<Fault>& faults) mutable {
    const Tensor x = torch::linspace(-1, 1, 40).view({5, 8});
    const Tensor y0 = layers[0]->forward(x, faults[0]);
    const Tensor y1 = layers[1]->forward(y0, faults[1]);
    const Tensor y2 = layers[0]->forward(y1 + y0, faults[2]);
    const Tensor y3 = layers[2]->forward(y1, faults[3]) + y2;
    const Tensor y4 = layers[1]->forward(y3, faults[4]);
    return y4.pow(2).mean() + y2.pow(2).mean();
  };
  return {net, loss, {"a", "b", "a", "c", "b"}};
}

// Returns a net with a stream past the blocks.
inline Victim residual() {
  auto net = std::make_shared<torch::nn::Module>("residual");
  const auto loss = [layers = named_layers(*net)](const std::vector<Fault>& faults) mutable {
    Tensor stream = torch::linspace(-1, 1, 40).view({5, 8});
    for (std::size_t b = 0; b < layers.size(); ++b) {
      stream = stream + layers[b]->forward(stream, faults[b]);
    }
    return stream.pow(2).mean();
  };
  return {net, loss, {"a", "b", "c"}};
}

// Returns a GPT-2. Faults occur only in results of layers.
inline Victim gpt() {
  gpt2::Config config;
  config.vocab_size = 17;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = 3;
  config.n_head = 2;
  gpt2::Gpt2 net(config);
  const Tensor tokens = torch::arange(12).view({2, 6});
  const auto loss = [net, tokens](const std::vector<Fault>& faults) mutable {
    Tensor x = net->embed(tokens);
    for (std::size_t b = 0; b < faults.size(); ++b) {
      gpt2::GptLayer layer = net->layers()[b];
      Fault fault = faults[b];
      fault.place = Place::result;
      x = pass_through(layer->forward(x), fault, Place::result);
    }
    return gpt2::mean_loss(net->head(x), tokens + 1);
  };
  return {net.ptr(), loss, {"transformer.h.0", "transformer.h.1", "transformer.h.2"}};
}

inline std::vector<std::int64_t> bad_gradients(const std::vector<Tensor>& parameters) {
  std::vector<std::int64_t> counts;
  for (const Tensor& parameter : parameters) {
    counts.push_back(cox::detail::scan(parameter.grad(), cox::detail::ScanKind::extent).nonfinite);
  }
  return counts;
}

}  // namespace fault_test
