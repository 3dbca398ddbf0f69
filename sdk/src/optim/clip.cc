#include "coxswain/clip.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include <cmath>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"

namespace cox {
namespace {

void check(double max_norm, const ClipOptions& options) {
  if (!(max_norm > 0)) {
    throw Error(invalid_argument("clip_by_global_norm: expected max_norm > 0, found ", max_norm));
  }
  if (options.known_norm && *options.known_norm < 0) {
    throw Error(invalid_argument("clip_by_global_norm: expected known_norm >= 0, found ",
                                 *options.known_norm));
  }
}

double norm_of(std::span<const at::Tensor> gradients, const ClipOptions& options) {
  if (options.known_norm) return *options.known_norm;
  const double local = detail::l2_norm(gradients);
  return options.combine ? std::sqrt(options.combine(local * local)) : local;
}

}  // namespace

double clip_by_global_norm(std::span<const at::Tensor> parameters, double max_norm,
                           const ClipOptions& options) {
  check(max_norm, options);
  const std::vector<at::Tensor> gradients =
      detail::gradients_of(detail::each_once({parameters.begin(), parameters.end()}));
  const double norm = norm_of(gradients, options);
  if (!std::isfinite(norm) || norm <= max_norm || gradients.empty()) return norm;
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, max_norm / norm);
  return norm;
}

}  // namespace cox
