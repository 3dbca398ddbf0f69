#include "sdk/examples/gpt2/model.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "coxswain/error.h"

namespace gpt2 {
namespace {

torch::nn::LayerNorm layer_norm(const Config& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

at::Tensor activate(const at::Tensor& x, const std::string& name) {
  if (name == "relu") return at::relu(x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

double score_scale(const Config& config, std::int64_t layer) {
  double scale = 1.0;
  if (config.scale_attn_weights) {
    scale /= std::sqrt(static_cast<double>(config.n_embd / config.n_head));
  }
  if (config.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
  return scale;
}

const Config& checked(const Config& config) {
  if (cox::Status status = validate(config); !status.ok()) {
    throw cox::Error(status.with_context("GPT-2 config"));
  }
  return config;
}

}  // namespace

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out)
    : weight_(register_parameter("weight", at::empty({in, out}))),
      bias_(register_parameter("bias", at::zeros({out}))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight_.size(1);
  return at::addmm(bias_, rows, weight_).view(shape);
}

GptAttentionImpl::GptAttentionImpl(const Config& config, std::int64_t layer, Attention attention)
    : config_(config),
      scale_(score_scale(config, layer)),
      attention_(attention),
      c_attn_(register_module("c_attn", Projection(config.n_embd, 3 * config.n_embd))),
      c_proj_(register_module("c_proj", Projection(config.n_embd, config.n_embd))) {}

at::Tensor GptAttentionImpl::plain(const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v) const {
  const std::int64_t length = q.size(-2);
  const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) * scale_;
  const at::Tensor masked = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  const at::Tensor weights = at::dropout(at::softmax(masked, -1), attention_dropout(), true);
  return at::matmul(weights, v);
}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t rows = x.size(0);
  const std::int64_t length = x.size(1);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({rows, length, config_.n_head, -1}).transpose(1, 2);
  };
  const std::vector<at::Tensor> parts = c_attn_->forward(x).split(config_.n_embd, -1);
  const at::Tensor q = heads(parts[0]);
  const at::Tensor k = heads(parts[1]);
  const at::Tensor v = heads(parts[2]);
  const at::Tensor mixed = attention_ == Attention::plain
                               ? plain(q, k, v)
                               : at::scaled_dot_product_attention(q, k, v, {}, attention_dropout(),
                                                                  /*is_causal=*/true, scale_);
  const at::Tensor joined = mixed.transpose(1, 2).reshape({rows, length, config_.n_embd});
  return at::dropout(c_proj_->forward(joined), config_.resid_pdrop, is_training());
}

GptMlpImpl::GptMlpImpl(const Config& config)
    : config_(config),
      c_fc_(register_module("c_fc", Projection(config.n_embd, config.inner()))),
      c_proj_(register_module("c_proj", Projection(config.inner(), config.n_embd))) {}

at::Tensor GptMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor inner = activate(c_fc_->forward(x), config_.activation_function);
  return at::dropout(c_proj_->forward(inner), config_.resid_pdrop, is_training());
}

GptLayerImpl::GptLayerImpl(const Config& config, std::int64_t layer, Attention attention)
    : ln_1_(register_module("ln_1", layer_norm(config))),
      attn_(register_module("attn", GptAttention(config, layer, attention))),
      ln_2_(register_module("ln_2", layer_norm(config))),
      mlp_(register_module("mlp", GptMlp(config))) {}

at::Tensor GptLayerImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attn_->forward(ln_1_->forward(x));
  return attended + mlp_->forward(ln_2_->forward(attended));
}

GptTransformerImpl::GptTransformerImpl(const Config& config, Attention attention)
    : config_(config),
      wte_(register_module("wte", torch::nn::Embedding(config.vocab_size, config.n_embd))),
      wpe_(register_module("wpe", torch::nn::Embedding(config.n_positions, config.n_embd))) {
  auto list = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    layers_.emplace_back(config, layer, attention);
    list->push_back(layers_.back());
  }
  ln_f_ = register_module("ln_f", layer_norm(config));
}

at::Tensor GptTransformerImpl::embed(const at::Tensor& tokens) {
  const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
  const at::Tensor hidden = wte_->forward(tokens) + wpe_->forward(positions);
  return at::dropout(hidden, config_.embd_pdrop, is_training());
}

at::Tensor GptTransformerImpl::head(const at::Tensor& hidden) {
  return at::linear(ln_f_->forward(hidden), wte_->weight);
}

Gpt2Impl::Gpt2Impl(const Config& config, Attention attention)
    : config_(checked(config)),
      transformer_(register_module("transformer", GptTransformer(config, attention))) {
  initialize();
}

void Gpt2Impl::initialize() {
  const at::NoGradGuard no_grad;
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  for (const cox::NamedTensor& named : gpt2::named_parameters(*this)) {
    if (named.tensor.dim() < 2) continue;
    const bool ends_residual = named.name.ends_with("c_proj.weight");
    named.tensor.normal_(0.0, config_.initializer_range * (ends_residual ? residual : 1.0));
  }
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens) {
  at::Tensor hidden = embed(tokens);
  for (GptLayer layer : layers()) hidden = layer(hidden);
  return head(hidden);
}

at::Tensor Gpt2Impl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return mean_loss(forward(tokens), targets);
}

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}).to(type),
                                targets.reshape({-1}));
}

std::vector<cox::NamedTensor> named_parameters(const torch::nn::Module& model) {
  std::vector<cox::NamedTensor> out;
  for (const auto& item : model.named_parameters()) out.push_back({item.key(), item.value()});
  return out;
}

DecayGroups decay_groups(const torch::nn::Module& model) {
  DecayGroups groups;
  for (cox::NamedTensor& named : named_parameters(model)) {
    (named.tensor.dim() >= 2 ? groups.decayed : groups.plain).push_back(std::move(named));
  }
  return groups;
}

}  // namespace gpt2
