#include "coordinator/estimates/cusum.h"

#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kOvershoot = 1.166;
constexpr double kLn10 = 2.302585092994046;

}  // namespace

// exp(y) = 1 + y + 2 k^2 / rate has its root where y = log of the right side. The iteration
// converges in a few rounds, because the right side hardly depends on y.
double cusum_threshold(double k, double rate) {
  const double target = 2 * k * k / rate;
  double y = portable_log(1 + target);
  for (int i = 0; i < 20; ++i) {
    const double next = portable_log(1 + y + target);
    if (next == y) break;
    y = next;
  }
  return std::max(y / (2 * k) - kOvershoot, kMaxScore - k);
}

double cusum_rarity(double sum, double k) {
  return (2 * k * (sum + kOvershoot) - portable_log(2 * k * k)) / kLn10;
}

CusumScale make_cusum_scale(double shift, double sigma) {
  CusumScale scale;
  scale.sigma = std::max(sigma, shift / (2 * kMaxAllowance));
  scale.k = std::clamp(shift / (2 * scale.sigma), kMinAllowance, kMaxAllowance);
  return scale;
}

CusumTest make_cusum_test(double shift, double sigma, double rate) {
  const CusumScale scale = make_cusum_scale(shift, sigma);
  return {scale, cusum_threshold(scale.k, rate)};
}

}  // namespace cox
