// Logarithm and exponential from additions, multiplications and divisions alone, with the same bits
// on every machine. The C library's results differ with its version and the processor, and a
// decision that depends on the last bit could not be replayed elsewhere. Pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cox {

// Returns the natural logarithm. Error below 1e-15 relative to max(1, |log x|). Inline and without
// a branch, so that loops over ranks are vectorised. REQUIRES: x is positive, normal and finite.
inline double portable_log(double x) {
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh((m-1)/(m+1)) as a series.
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull;
  constexpr std::uint64_t kBias = 1024;  // keeps e positive: shifts with a sign are slow
  constexpr std::uint64_t kTwoTo52 = 0x4330000000000000ull;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t biased = (bits - kSqrtHalf + (kBias << 52)) >> 52;
  const double exponent = std::bit_cast<double>(kTwoTo52 | biased) - (0x1p52 + kBias);
  const double m = std::bit_cast<double>(bits - (biased << 52) + (kBias << 52));
  const double s = (m - 1) / (m + 1);
  const double q = s * s;
  // Summed as a tree, because a nested form is one long chain of dependent operations.
  const double q2 = q * q;
  const double q4 = q2 * q2;
  const double low = (1 + q * (1.0 / 3)) + q2 * (1.0 / 5 + q * (1.0 / 7));
  const double middle = (1.0 / 9 + q * (1.0 / 11)) + q2 * (1.0 / 13 + q * (1.0 / 15));
  const double high = (1.0 / 17 + q * (1.0 / 19)) + q2 * (1.0 / 21);
  const double series = low + q4 * (middle + q4 * high);
  return exponent * kLn2 + 2 * s * series;
}

// Returns e^x. REQUIRES: |x| <= 64. Relative error below 1e-13.
inline double portable_exp(double x) {
  // Taylor's series of x / 256, squared eight times.
  const double r = x / 256;
  double series = 1;
  for (int n = 14; n >= 1; --n) series = 1 + r / n * series;
  for (int i = 0; i < 8; ++i) series *= series;
  return series;
}

// Returns the logarithm of a ratio, clamped to 0.001 .. 1,000. Always inline: a call would keep
// loops over ranks from being vectorised.
[[gnu::always_inline]] inline double log_ratio(double ratio) {
  return portable_log(std::min(std::max(ratio, 1e-3), 1e3));
}

// Returns e^x, with x clamped to -8 .. 8.
inline double bounded_exp(double logarithm) {
  return portable_exp(std::clamp(logarithm, -8.0, 8.0));
}

}  // namespace cox
