// A tensor and the name it has in a model or a file. A tensor is a handle: copies of a NamedTensor
// share the data, so a list of them can serve as the source or as the target of a load.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace cox {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace cox
