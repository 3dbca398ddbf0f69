#include "sdk/src/parallel/gradient_norm.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sdk/src/precision/tensor_scan.h"

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

}  // namespace

void SquaresSeen::look(std::size_t place, const at::Tensor& gradient) {
  if (!has_own_loops(gradient)) return;
  if (place >= looks_.size()) looks_.resize(place + 1);
  looks_[place] =
      Look{Weak(gradient.getIntrusivePtr()), gradient._version(), scan_gradient(gradient).squares};
}

double SquaresSeen::of(std::size_t place, const at::Tensor& gradient) const {
  const std::optional<Look> look = place < looks_.size() ? looks_[place] : std::nullopt;
  const bool is_same = look &&
                       look->tensor._unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
                       look->version == gradient._version();
  return is_same ? look->squares : scan_gradient(gradient).squares;
}

double l2_norm(std::span<const at::Tensor> tensors, const SquaresSeen& seen) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  std::vector<at::Tensor> others;
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    const at::Tensor& tensor = tensors[place];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (has_own_loops(tensor)) {
      squares += seen.of(place, tensor);
    } else {
      others.push_back(tensor);
    }
  }
  const double plain = std::sqrt(squares);
  return others.empty() ? plain : std::hypot(plain, norm_through_torch(others));
}

std::int64_t count_nonfinite(const at::Tensor& tensor) {
  return scan(tensor, ScanKind::extent).nonfinite;
}

}  // namespace cox::detail
