// What the tests of blocks share: three small models whose blocks can be called directly or through
// cox::run, a sink that keeps what it is told, and comparison bit for bit.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/block.h"
#include "coxswain/run.h"
#include "sdk/src/blocks/block_call.h"
#include "sdk/src/blocks/block_registry.h"

namespace blocks_test {

using at::Tensor;
using cox::BlockId;
using cox::detail::BlockMeasurement;
using cox::detail::BlockRegistry;
using cox::detail::MeasureMode;

enum class Calls { direct, through_run };

struct Report {
  BlockId block;
  BlockMeasurement measured;
};

struct KeepingSink final : cox::detail::BlockSink {
  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override {
    reports.push_back({block, measurement});
  }
  std::vector<Report> reports;
};

// Calls the layer's forward, as a block or not.
template <class Holder, class... Inputs>
Tensor call(Calls how, const cox::Block<Holder>& block, const Inputs&... inputs) {
  if (how == Calls::direct) return block->forward(inputs...);
  using Impl = typename cox::Block<Holder>::Impl;
  return cox::run(
      block, [](Impl& impl, const Inputs&... args) { return impl.forward(args...); }, inputs...);
}

struct GptLayerImpl : torch::nn::Module {
  explicit GptLayerImpl(std::int64_t width)
      : norm1(register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("c_attn", torch::nn::Linear(width, 3 * width))),
        proj(register_module("c_proj", torch::nn::Linear(width, width))),
        norm2(register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        drop(register_module("drop", torch::nn::Dropout(0.2))) {}

  Tensor forward(const Tensor& x) {
    const auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), 2, -1}).transpose(1, 2);
    };
    const auto parts = qkv->forward(norm1->forward(x)).chunk(3, -1);
    const Tensor attended = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                             heads(parts[2]), {}, 0.1, true);
    const Tensor mixed = attended.transpose(1, 2).reshape(x.sizes());
    const Tensor y = x + drop->forward(proj->forward(mixed));
    return y + drop->forward(down->forward(torch::gelu(up->forward(norm2->forward(y)))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(GptLayer);

struct GptNetImpl : torch::nn::Module {
  explicit GptNetImpl(int depth = 2)
      : embedding(register_module("wte", torch::nn::Embedding(11, 8))),
        layers(register_module("h", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(8, 11))) {
    for (int i = 0; i < depth; ++i) {
      GptLayer layer(8);
      layers->push_back(layer);
      blocks.emplace_back(layer);
    }
  }
  Tensor forward(const Tensor& ids, Calls how) {
    Tensor x = embedding->forward(ids);
    for (const auto& block : blocks) x = call(how, block, x);
    return head->forward(x);
  }
  Tensor example() const { return torch::arange(10).view({2, 5}); }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList layers;
  torch::nn::Linear head;
  std::vector<cox::Block<GptLayer>> blocks;
};
TORCH_MODULE(GptNet);

struct MlpLayerImpl : torch::nn::Module {
  explicit MlpLayerImpl(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))) {}
  Tensor forward(const Tensor& x) {
    return torch::dropout(torch::relu(norm->forward(linear->forward(x))), 0.3, is_training());
  }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(MlpLayer);

struct MlpNetImpl : torch::nn::Module {
  MlpNetImpl()
      : first(register_module("first", MlpLayer(6))),
        second(register_module("second", MlpLayer(6))) {}
  Tensor forward(const Tensor& x, Calls how) { return call(how, second, call(how, first, x)); }
  Tensor example() const { return torch::linspace(-1, 1, 24).view({4, 6}); }
  cox::Block<MlpLayer> first, second;
};
TORCH_MODULE(MlpNet);

struct ConvLayerImpl : torch::nn::Module {
  explicit ConvLayerImpl(std::int64_t in)
      : conv(register_module("conv",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 3, 3).padding(1)))) {}
  Tensor forward(const Tensor& x) { return torch::max_pool2d(conv->forward(x).relu_(), 2); }
  torch::nn::Conv2d conv;
};
TORCH_MODULE(ConvLayer);

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl()
      : first(register_module("first", ConvLayer(1))),
        second(register_module("second", ConvLayer(3))) {}
  Tensor forward(const Tensor& x, Calls how) { return call(how, second, call(how, first, x)); }
  Tensor example() const { return torch::linspace(-2, 2, 128).view({2, 1, 8, 8}); }
  cox::Block<ConvLayer> first, second;
};
TORCH_MODULE(ConvNet);

inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !torch::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace blocks_test
