#include "sdk/src/parallel/gradient_norm.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define COX_WIDEST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define COX_WIDEST_VECTORS
#endif

namespace cox::detail {
namespace {

constexpr std::int64_t kLanes = 32;        // partial sums side by side
constexpr std::int64_t kChunk = 1L << 17;  // elements that one thread sums at a time

COX_WIDEST_VECTORS double sum_of_squares(const float* values, std::int64_t count) {
  std::array<double, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  for (; i < count; ++i) {
    const double value = values[i];
    sums[static_cast<std::size_t>(i % kLanes)] += value * value;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

double sum_of_squares(const at::Tensor& tensor) {
  const auto* values = tensor.const_data_ptr<float>();
  const std::int64_t count = tensor.numel();
  if (count <= kChunk) return sum_of_squares(values, count);
  std::vector<double> sums(static_cast<std::size_t>((count + kChunk - 1) / kChunk));
  at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1, [&](auto begin, auto end) {
    for (std::int64_t c = begin; c < end; ++c) {
      const std::int64_t first = c * kChunk;
      sums[static_cast<std::size_t>(c)] =
          sum_of_squares(values + first, std::min(kChunk, count - first));
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

bool is_plain_fp32(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense();
}

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

double l2_norm(std::span<const at::Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (is_plain_fp32(tensor)) {
      squares += sum_of_squares(tensor);
    } else {
      others.push_back(tensor);
    }
  }
  const double plain = std::sqrt(squares);
  return others.empty() ? plain : std::hypot(plain, norm_through_torch(others));
}

std::int64_t count_nonfinite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  return tensor.numel() - at::isfinite(tensor).sum().item<std::int64_t>();
}

}  // namespace cox::detail
