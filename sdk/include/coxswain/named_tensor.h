// NamedTensor is a tensor with its name in a model or a file. A tensor is a handle, so copies of a
// NamedTensor share the data. A list of NamedTensor can be the source or the target of a load.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace cox {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

namespace detail {

// Returns the tensors with empty names. The receiver assigns names.
inline std::vector<NamedTensor> without_names(const std::vector<at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) named.push_back({{}, tensor});
  return named;
}

}  // namespace detail

}  // namespace cox
