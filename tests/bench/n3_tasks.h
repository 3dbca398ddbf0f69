// The tasks of goal N3: small trainings whose every matrix product lies in a block, so that work in
// each format can be counted. Made from a seed; each runs once.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coxswain/dataset.h"

namespace cox::bench {

// Multiplications of one block in a forward pass over one sample.
struct BlockWork {
  double linear = 0;     // products with a weight, which FP8 takes
  double attention = 0;  // products of two activations, which stay in 16 bits
};

struct Task {
  std::string name;
  torch::nn::Sequential model;  // one block an element
  std::vector<BlockWork> work;  // one a block
  std::shared_ptr<Dataset> train;
  Batch held_out;  // not trained on
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> loss;
  std::int64_t batch = 8;
  std::uint64_t steps = 300;
  double learning_rate = 3e-3;
};

// "adopted " marks a task whose loop adopts the model as a user wrote it.
inline constexpr const char* kTasks[] = {"text", "regression", "mixer", "adopted text",
                                         "adopted resnet"};
inline bool is_adopted(const std::string& name) {
  return name.starts_with("adopted ");
}

// `text` is a file for the text tasks, read byte by byte.
Task make_task(const std::string& name, std::uint64_t seed, const std::string& text);

}  // namespace cox::bench
