#include "coordinator/core/portable_math.h"

#include <bit>
#include <cstdint>

namespace cox {

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh((m-1)/(m+1)) as a series.
double portable_log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto exponent = static_cast<std::int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(exponent) << 52));
  const double s = (m - 1) / (m + 1);
  const double q = s * s;
  // Summed as a tree: the chain of a nested form is what a processor would wait for.
  const double q2 = q * q;
  const double q4 = q2 * q2;
  const double low = (1 + q * (1.0 / 3)) + q2 * (1.0 / 5 + q * (1.0 / 7));
  const double middle = (1.0 / 9 + q * (1.0 / 11)) + q2 * (1.0 / 13 + q * (1.0 / 15));
  const double high = (1.0 / 17 + q * (1.0 / 19)) + q2 * (1.0 / 21);
  const double series = low + q4 * (middle + q4 * high);
  return static_cast<double>(exponent) * kLn2 + 2 * s * series;
}

// Taylor's series of x / 256, squared eight times.
double portable_exp(double x) {
  const double r = x / 256;
  double series = 1;
  for (int n = 14; n >= 1; --n) series = 1 + r / n * series;
  for (int i = 0; i < 8; ++i) series *= series;
  return series;
}

}  // namespace cox
