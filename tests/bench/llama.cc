#include "tests/bench/llama.h"

namespace cox::bench {
namespace {

torch::nn::Linear plain_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

}  // namespace

LlamaBlockImpl::LlamaBlockImpl(const LlamaShape& shape)
    : shape_(shape),
      q_(register_module("q", plain_linear(shape.width, shape.width))),
      k_(register_module("k",
                         plain_linear(shape.width, shape.width / shape.heads * shape.key_heads))),
      v_(register_module("v",
                         plain_linear(shape.width, shape.width / shape.heads * shape.key_heads))),
      out_(register_module("out", plain_linear(shape.width, shape.width))),
      gate_(register_module("gate", plain_linear(shape.width, shape.inner))),
      up_(register_module("up", plain_linear(shape.width, shape.inner))),
      down_(register_module("down", plain_linear(shape.inner, shape.width))),
      before_attention_(register_parameter("before_attention", at::ones({shape.width}))),
      before_mlp_(register_parameter("before_mlp", at::ones({shape.width}))) {}

at::Tensor LlamaBlockImpl::attend(const at::Tensor& x, const at::Tensor& cos,
                                  const at::Tensor& sin) {
  const std::int64_t rows = x.size(0), length = x.size(1), size = shape_.width / shape_.heads;
  const auto heads = [&](const at::Tensor& y, std::int64_t count) {
    return y.view({rows, length, count, size}).transpose(1, 2);
  };
  const at::Tensor q = rotated(heads(q_->forward(x), shape_.heads), cos, sin);
  const at::Tensor k = rotated(heads(k_->forward(x), shape_.key_heads), cos, sin);
  const at::Tensor v = heads(v_->forward(x), shape_.key_heads);
  const at::Tensor y = at::scaled_dot_product_attention(q, k.to(q.scalar_type()),
                                                        v.to(q.scalar_type()), {}, 0.0, true, {},
                                                        /*enable_gqa=*/true);
  return out_->forward(y.transpose(1, 2).reshape({rows, length, shape_.width}));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const at::Tensor& cos,
                                   const at::Tensor& sin) {
  const at::Tensor y =
      x + attend(at::rms_norm(x, {shape_.width}, before_attention_, 1e-5), cos, sin);
  const at::Tensor z = at::rms_norm(y, {shape_.width}, before_mlp_, 1e-5);
  return y + down_->forward(at::silu(gate_->forward(z)) * up_->forward(z));
}

LlamaImpl::LlamaImpl(const LlamaShape& shape)
    : shape_(shape),
      words_(register_module("words", torch::nn::Embedding(shape.words, shape.width))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(register_parameter("norm", at::ones({shape.width}))),
      head_(register_module("head", plain_linear(shape.width, shape.words))) {
  for (std::int64_t i = 0; i < shape.layers; ++i) layers_->push_back(LlamaBlock(shape));
  const std::int64_t size = shape.width / shape.heads;
  const at::Tensor rates = at::pow(500000.0, -at::arange(0, size, 2).to(at::kFloat) / size);
  const at::Tensor angles = at::outer(at::arange(shape.length).to(at::kFloat), rates);
  const at::Tensor both = at::cat({angles, angles}, -1);
  cos_ = register_buffer("cos", both.cos());
  sin_ = register_buffer("sin", both.sin());
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor x = words_->forward(tokens);
  for (const auto& layer : *layers_) x = layer->as<LlamaBlockImpl>()->forward(x, cos_, sin_);
  const at::Tensor logits = head_->forward(at::rms_norm(x, {shape_.width}, norm_, 1e-5));
  return at::cross_entropy_loss(logits.view({-1, shape_.words}), targets.view({-1}));
}

}  // namespace cox::bench
