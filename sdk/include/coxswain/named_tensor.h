// NamedTensor is a tensor and the name it has in a model or a file. A tensor is a handle: copies of
// a NamedTensor share the data, so a list of them can serve as the source or as the target of a
// load.
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

// Returns the tensors without names; whoever takes them gives them their names.
inline std::vector<NamedTensor> without_names(const std::vector<at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) named.push_back({{}, tensor});
  return named;
}

}  // namespace detail

}  // namespace cox
