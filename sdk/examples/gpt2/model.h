// GPT-2 as torch::nn modules. Architecture, parameter names and shapes are those of Hugging Face's
// GPT2LMHeadModel, so its safetensors files load and save both ways (model_file.h). The head is
// tied: logits = hidden * wte^T, without a parameter lm_head.
//
//   gpt2::Gpt2 model(config);
//   at::Tensor loss = model->loss(batch.inputs, batch.targets);
//
// Shapes: tokens and targets int64 [rows, length], length <= n_positions; hidden [rows, length,
// n_embd]; logits [rows, length, vocab_size]. Modules are used by one thread at a time.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "coxswain/named_tensor.h"
#include "sdk/examples/gpt2/config.h"

namespace gpt2 {

enum class Attention {
  fused,  // at::scaled_dot_product_attention: scores are never stored
  plain,  // matmul, mask, softmax, matmul: can be differentiated twice
};

// y = x W + b with W stored [in, out], transposed against torch::nn::Linear. Called "Conv1D" in
// transformers.
class ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};
TORCH_MODULE(Projection);

// Causal self-attention over n_head heads.
class GptAttentionImpl : public torch::nn::Module {
 public:
  // `layer` counts from 0.
  GptAttentionImpl(const Config& config, std::int64_t layer, Attention attention);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  double attention_dropout() const { return is_training() ? config_.attn_pdrop : 0.0; }

  Config config_;
  double scale_;
  Attention attention_;
  Projection c_attn_;  // queries, keys and values side by side
  Projection c_proj_;
};
TORCH_MODULE(GptAttention);

class GptMlpImpl : public torch::nn::Module {
 public:
  explicit GptMlpImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Config config_;
  Projection c_fc_;
  Projection c_proj_;
};
TORCH_MODULE(GptMlp);

// One transformer layer, hidden to hidden.
class GptLayerImpl : public torch::nn::Module {
 public:
  GptLayerImpl(const Config& config, std::int64_t layer, Attention attention);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm ln_1_;
  GptAttention attn_;
  torch::nn::LayerNorm ln_2_;
  GptMlp mlp_;
};
TORCH_MODULE(GptLayer);

// The model without its head. A module of its own, because the module's name is part of every
// parameter's name.
class GptTransformerImpl : public torch::nn::Module {
 public:
  GptTransformerImpl(const Config& config, Attention attention);
  at::Tensor embed(const at::Tensor& tokens);  // tokens to hidden
  at::Tensor head(const at::Tensor& hidden);   // hidden to logits
  const std::vector<GptLayer>& layers() const { return layers_; }

 private:
  Config config_;
  torch::nn::Embedding wte_;
  torch::nn::Embedding wpe_;
  std::vector<GptLayer> layers_;
  torch::nn::LayerNorm ln_f_ = nullptr;
};
TORCH_MODULE(GptTransformer);

class Gpt2Impl : public torch::nn::Module {
 public:
  // Draws fresh weights from torch's default generator: seed the generator before. Throws
  // cox::Error for a config that validate() refuses.
  explicit Gpt2Impl(const Config& config, Attention attention = Attention::fused);

  // The three parts of a forward pass.
  at::Tensor embed(const at::Tensor& tokens) { return transformer_->embed(tokens); }
  const std::vector<GptLayer>& layers() const { return transformer_->layers(); }
  at::Tensor head(const at::Tensor& hidden) { return transformer_->head(hidden); }

  at::Tensor forward(const at::Tensor& tokens);  // logits
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  const Config& config() const { return config_; }

 private:
  void initialize();

  Config config_;
  GptTransformer transformer_;
};
TORCH_MODULE(Gpt2);

// Returns the mean cross-entropy over all positions, in float32 at least, for any dtype of the
// logits.
at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& targets);

// Returns the parameters in the order and with the names of Hugging Face.
std::vector<cox::NamedTensor> named_parameters(const torch::nn::Module& model);

// DecayGroups are the parameters with weight decay (two or more dimensions), and the others.
struct DecayGroups {
  std::vector<cox::NamedTensor> decayed;
  std::vector<cox::NamedTensor> plain;
};
DecayGroups decay_groups(const torch::nn::Module& model);

}  // namespace gpt2
