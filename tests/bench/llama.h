// Blocks of Llama's shape for benchmarks on a device: RMS norms, rotary positions, grouped
// attention, a gated MLP. Written as a user would, without Coxswain.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace cox::bench {

struct LlamaShape {
  std::int64_t layers, width, heads, key_heads, inner;
  std::int64_t words = 512;
  std::int64_t length = 4096;  // tokens a sequence
};

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaShape& shape);
  // Returns the shape of x. x: [rows, length, width]; cos and sin: [length, width of a head].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

 private:
  at::Tensor attend(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

  LlamaShape shape_;
  torch::nn::Linear q_, k_, v_, out_, gate_, up_, down_;
  at::Tensor before_attention_, before_mlp_;  // weights of the norms
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaShape& shape);
  // Both int64 [rows, length]; returns the mean loss.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

 private:
  LlamaShape shape_;
  torch::nn::Embedding words_;
  torch::nn::ModuleList layers_;
  at::Tensor norm_;
  torch::nn::Linear head_;
  at::Tensor cos_, sin_;  // buffers
};
TORCH_MODULE(Llama);

}  // namespace cox::bench
