#include "sdk/src/parallel/gradient_norm.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

// One read for all tensors: a read of each costs more than its norm.
double norm_of_norms(const std::vector<at::Tensor>& norms) {
  const at::Tensor all = at::stack(norms).to(at::kCPU, at::kDouble);
  return at::linalg_vector_norm(all, 2).item<double>();
}

double norm_through_torch(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return 0;
  const bool has_fp64 = std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble;
  });
  // Not in the tensors' own type: a norm in bf16 has two digits.
  const double norm =
      norm_of_norms(at::_foreach_norm(tensors, 2, has_fp64 ? at::kDouble : at::kFloat));
  if (std::isfinite(norm)) return norm;
  // fp32 squares overflow from 1.8e19 on; only then is the slower sum in double needed.
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors) {
    norms.push_back(at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble));
  }
  return norm_of_norms(norms);
}

template <class TensorAt>
double norm_over(std::size_t count, const TensorAt& tensor_at) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  std::vector<at::Tensor> others;
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor& tensor = tensor_at(i);
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (has_own_loops(tensor)) {
      squares += scan_gradient(tensor).squares;
    } else {
      others.push_back(tensor.layout() == at::kStrided ? tensor : tensor.to_dense());
    }
  }
  const double plain = std::sqrt(squares);
  return others.empty() ? plain : std::hypot(plain, norm_through_torch(others));
}

}  // namespace

double l2_norm(std::span<const at::Tensor> tensors) {
  return norm_over(tensors.size(), [&](std::size_t i) -> const at::Tensor& { return tensors[i]; });
}

double gradient_norm(std::span<const at::Tensor> parameters) {
  return norm_over(parameters.size(),
                   [&](std::size_t i) -> const at::Tensor& { return parameters[i].grad(); });
}

std::int64_t count_nonfinite(const at::Tensor& tensor) {
  return scan(tensor, ScanKind::extent).nonfinite;
}

}  // namespace cox::detail
