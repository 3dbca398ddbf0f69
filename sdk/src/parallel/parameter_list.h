// What a list of parameters says of itself, for those who average them. Pure; takes part in
// nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

namespace cox::detail {

// A parameter that two modules share has one gradient.
inline std::vector<at::Tensor> each_once(std::vector<at::Tensor> tensors) {
  std::unordered_set<const void*> seen;
  std::erase_if(tensors, [&](const at::Tensor& tensor) {
    return !seen.insert(tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

// Whether each requires a gradient now.
inline std::vector<bool> required_of(const std::vector<at::Tensor>& parameters) {
  std::vector<bool> required;
  for (const at::Tensor& p : parameters) required.push_back(p.requires_grad());
  return required;
}

}  // namespace cox::detail
