// The bytes of the tensors where a model lies: the CPU's, where a counting allocator is installed,
// or a device's. Tests of budgets hold on both.
#pragma once

#include <torch/torch.h>

#include "sdk/src/memory/tensor_memory.h"

namespace cox::test {

// REQUIRES: the model has a parameter.
inline detail::TensorMemory memory_of(const torch::nn::Module& model) {
  return detail::TensorMemory(model.parameters().front().device());
}

}  // namespace cox::test
