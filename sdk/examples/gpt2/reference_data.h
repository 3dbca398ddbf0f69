// A reference folder read into memory: a small model, a fixed batch, and the expected results of
// training. The folder holds config.json, model.safetensors, batch.safetensors ("tokens", int64
// [rows, length + 1]), logits_sample0.safetensors ("logits", float32 [length, vocabulary]) and
// expected.json. Plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/examples/gpt2/config.h"

namespace gpt2 {

using Norms = std::map<std::string, double>;  // L2 norm by parameter name

// ExpectedRun is the result of one way of training (float32 with plain attention, two ranks, ...).
struct ExpectedRun {
  std::vector<double> losses;                    // before update 0, 1, ...
  double final_loss = 0;                         // after the last update
  Norms first_gradient;                          // from the first backward pass; may be empty
  std::vector<double> total_gradient;            // over all parameters, per step
  Norms final_parameters;                        // after the last update; may be empty
  std::vector<std::vector<double>> rank_losses;  // [rank][step]; empty for one rank
};

struct Reference {
  std::filesystem::path weights;  // the safetensors file, not read yet
  Config config;
  at::Tensor tokens;  // int64; training runs on the device of `tokens`
  at::Tensor logits_sample0;
  std::map<std::string, std::vector<std::int64_t>> shapes;  // by parameter name
  Norms initial_parameters;
  std::vector<double> per_sample_loss;
  ExpectedRun plain;      // "fp32"
  ExpectedRun fused;      // "fp32_fused_attention", may be absent (no losses)
  ExpectedRun two_ranks;  // "ddp_two_ranks", may be absent (no losses)

  at::Tensor inputs() const;   // [rows, length]
  at::Tensor targets() const;  // [rows, length], one position further
};

// Reads the folder. Errors name the file and the key that is missing or of another kind.
cox::Result<Reference> read_reference(const std::filesystem::path& folder);

}  // namespace gpt2
