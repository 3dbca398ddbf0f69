// The task of D1: a GPT-2 and rows of text, in files that the other side reads, too. Both sides
// start from the same weights and train on the same samples. Blocks on the disk.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>

#include "coxswain/dataset.h"
#include "sdk/examples/gpt2/model.h"

namespace cox::bench {

struct D1Shape {
  std::int64_t layers = 4;
  std::int64_t width = 256;
  std::int64_t length = 128;  // bytes a sequence
  std::int64_t samples = 1024;
};

// Writes config.json, model.safetensors and tokens.safetensors ("tokens", int64 [samples,
// length + 1], taken evenly from `text`). Throws cox::Error.
void write_d1_task(const std::filesystem::path& folder, const std::filesystem::path& text,
                   const D1Shape& shape);

struct D1Task {
  gpt2::Gpt2 model;
  at::Tensor tokens;
};
D1Task read_d1_task(const std::filesystem::path& folder);

struct D1Slot {
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::int64_t rows = 4;  // for each rank and step
};
// Returns the rows of a rank in a step. All ranks together take the samples in order and wrap at
// the end.
Batch d1_batch(const at::Tensor& tokens, const D1Slot& slot, std::int64_t step);

}  // namespace cox::bench
