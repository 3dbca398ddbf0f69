// Counts the bytes of tensors on a model's device: the CPU, with a counting allocator installed, or
// a GPU. Budget tests work on both.
#pragma once

#include <torch/torch.h>

#include "sdk/src/memory/tensor_memory.h"

namespace cox::test {

// REQUIRES: the model has a parameter.
inline detail::TensorMemory memory_of(const torch::nn::Module& model) {
  return detail::TensorMemory(model.parameters().front().device());
}

}  // namespace cox::test
