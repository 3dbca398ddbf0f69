// The shape of a GPT-2 model, and the config.json of Hugging Face's transformers. Plain value; the
// file functions block on the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "coordinator/core/status.h"

namespace gpt2 {

struct Config {
  std::int64_t vocab_size = 256;   // bytes
  std::int64_t n_positions = 128;  // longest sequence
  std::int64_t n_embd = 128;       // width, a multiple of n_head
  std::int64_t n_layer = 4;
  std::int64_t n_head = 4;
  std::int64_t n_inner = 0;  // width inside the mlp; 0 is 4 * n_embd
  double embd_pdrop = 0.1;   // dropout: embeddings, attention probabilities, residual branches
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;  // standard deviation of fresh weights
  std::string activation_function = "gelu_new";
  bool scale_attn_weights = true;                // divide scores by sqrt(head width)
  bool scale_attn_by_inverse_layer_idx = false;  // and by the layer's number, counted from 1

  std::int64_t inner() const { return n_inner > 0 ? n_inner : 4 * n_embd; }
  friend bool operator==(const Config&, const Config&) = default;
};

// Checks that every number is in range, widths divide, and the activation function is known.
cox::Status validate(const Config& config);

// Parses a config.json. Ignores keys that do not change this model. Keys that require another model
// (an untied head, cross attention, another model_type) are errors. Absent keys have transformers'
// default values.
cox::Result<Config> config_from_json(const std::string& text);
cox::Result<Config> read_config(const std::filesystem::path& file);

// Returns text that transformers' GPT2LMHeadModel.from_pretrained can read.
std::string config_to_json(const Config& config);
cox::Status write_config(const std::filesystem::path& file, const Config& config);

}  // namespace gpt2
