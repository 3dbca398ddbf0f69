// What the tests of blame share: a fault that a block's function can be given (one value of what
// goes in or comes out of it goes wrong, forward or backward), and three kinds of models whose
// blocks take one.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "coxswain/run.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/precision/block_health.h"

namespace fault_test {

using at::Tensor;

struct Fault {
  enum class Pass { none, forward, backward };
  enum class Kind { infinity, nan, overflow };  // overflow: finite, but not in the format
  Pass pass = Pass::none;
  Kind kind = Kind::infinity;
  bool at_input = false;
  std::int64_t element = 0;  // modulo the size
  at::ScalarType format = at::kFloat;
};

// The value as the format has it.
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

inline Tensor pass_through(const Tensor& x, const Fault& fault, bool is_input) {
  if (fault.pass == Fault::Pass::none || fault.at_input != is_input) return x;
  return Spoil::apply(x, fault);
}

// A block's function with a fault in it.
template <class Impl>
Tensor faulty(Impl& impl, const Tensor& x, const Fault& fault) {
  return pass_through(impl.forward(pass_through(x, fault, true)), fault, false);
}

struct DenseLayerImpl : torch::nn::Module {
  explicit DenseLayerImpl(std::int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))) {}
  Tensor forward(const Tensor& x) { return down->forward(torch::relu(up->forward(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(DenseLayer);

struct ConvLayerImpl : torch::nn::Module {
  explicit ConvLayerImpl(std::int64_t in)
      : conv(register_module("conv",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 3, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))) {}
  Tensor forward(const Tensor& x) { return torch::relu(norm->forward(conv->forward(x))); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvLayer);

// A model, as a function from one fault a call of a block to a loss.
struct Victim {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const std::vector<Fault>&)> loss;
  std::size_t blocks;                 // calls, where blocks are called several times
  std::vector<std::size_t> called{};  // the block of each call; empty: each block once, in order
};

template <class Layer>
Tensor chain(const std::vector<cox::Block<Layer>>& blocks, Tensor x,
             const std::vector<Fault>& faults) {
  using Impl = typename cox::Block<Layer>::Impl;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    x = cox::run(blocks[b], &faulty<Impl>, x, faults[b]);
  }
  return x;
}

template <class Layer>
Victim chain_victim(std::vector<Layer> layers, const Tensor& input) {
  auto net = std::make_shared<torch::nn::Module>("chain");
  std::vector<cox::Block<Layer>> blocks;
  for (const Layer& layer : layers) {
    blocks.emplace_back(net->register_module("layer" + std::to_string(blocks.size()), layer));
  }
  const auto loss = [blocks, input](const std::vector<Fault>& faults) {
    return chain(blocks, input, faults).to(at::kFloat).pow(2).mean();
  };
  return {net, loss, blocks.size()};
}

inline Victim mlp() {
  return chain_victim<DenseLayer>({DenseLayer(8), DenseLayer(8), DenseLayer(8), DenseLayer(8)},
                                  torch::linspace(-1, 1, 40).view({5, 8}));
}

inline Victim conv_net() {
  return chain_victim<ConvLayer>({ConvLayer(1), ConvLayer(3), ConvLayer(3)},
                                 torch::linspace(-2, 2, 72).view({2, 1, 6, 6}));
}

// Skips, a block with two inputs, and two blocks that are called twice.
inline Victim graph() {
  auto net = std::make_shared<torch::nn::Module>("graph");
  std::vector<cox::Block<DenseLayer>> blocks;
  for (const char* name : {"a", "b", "c"}) {
    blocks.emplace_back(net->register_module(name, DenseLayer(8)));
  }
  const auto loss = [blocks](const std::vector<Fault>& faults) {
    const auto one = &faulty<DenseLayerImpl>;
    const auto two = [](DenseLayerImpl& impl, const Tensor& x, const Tensor& y,
                        const Fault& fault) { return faulty(impl, x, fault) + y; };
    const Tensor x = torch::linspace(-1, 1, 40).view({5, 8});
    const Tensor y0 = cox::run(blocks[0], one, x, faults[0]);
    const Tensor y1 = cox::run(blocks[1], one, y0, faults[1]);
    const Tensor y2 = cox::run(blocks[0], one, y1 + y0, faults[2]);
    const Tensor y3 = cox::run(blocks[2], two, y1, y2, faults[3]);
    const Tensor y4 = cox::run(blocks[1], one, y3, faults[4]);
    return y4.pow(2).mean() + y2.pow(2).mean();
  };
  return {net, loss, 5, {0, 1, 0, 2, 1}};
}

// The stream past the blocks is the caller's.
inline Victim residual() {
  auto net = std::make_shared<torch::nn::Module>("residual");
  std::vector<cox::Block<DenseLayer>> blocks;
  for (const char* name : {"a", "b", "c"}) {
    blocks.emplace_back(net->register_module(name, DenseLayer(8)));
  }
  const auto loss = [blocks](const std::vector<Fault>& faults) {
    Tensor stream = torch::linspace(-1, 1, 40).view({5, 8});
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      stream = stream + cox::run(blocks[b], &faulty<DenseLayerImpl>, stream, faults[b]);
    }
    return stream.pow(2).mean();
  };
  return {net, loss, 3};
}

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
    return gpt2::mean_loss(net->head(chain(net->layers(), net->embed(tokens), faults)), tokens + 1);
  };
  return {net.ptr(), loss, 3};
}

inline std::vector<std::int64_t> bad_gradients(const std::vector<Tensor>& parameters) {
  std::vector<std::int64_t> counts;
  for (const Tensor& parameter : parameters) {
    counts.push_back(cox::detail::scan(parameter.grad(), cox::detail::ScanKind::extent).nonfinite);
  }
  return counts;
}

}  // namespace fault_test
