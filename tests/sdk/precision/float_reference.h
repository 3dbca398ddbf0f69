// The formats by definition, for tests. Lists all values of a format with ldexp, and rounds floats
// by comparing midpoints in double. Independent of the codec.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "sdk/src/precision/float_codec.h"

namespace codec_test {

using cox::detail::FloatFormat;

struct Definition {
  FloatFormat format;
  std::string name;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  // Returns the code of infinity; for E4M3, which has none, of NaN.
  std::uint32_t infinity() const {
    const int ones = exponent_bits + (has_infinity ? 0 : mantissa_bits);
    return ((1u << ones) - 1) << (7 - ones);
  }
  bool is_nan(std::uint32_t code) const {
    return (code & 0x7F) >= infinity() + (has_infinity ? 1u : 0u);
  }
};

inline const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all = {{FloatFormat::e4m3, "E4M3", 4, 3, false},
                                              {FloatFormat::e5m2, "E5M2", 5, 2, true}};
  return all;
}

// Returns all finite non-negative values, ascending; index = code.
inline std::vector<double> finite_values(const Definition& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponents = 1 << format.exponent_bits;
  const int mantissas = 1 << format.mantissa_bits;
  std::vector<double> values;
  for (int e = 0; e < exponents - (format.has_infinity ? 1 : 0); ++e) {
    for (int m = 0; m < mantissas; ++m) {
      const double fraction = static_cast<double>(m) / mantissas;
      values.push_back(e == 0 ? std::ldexp(fraction, 1 - bias)
                              : std::ldexp(1 + fraction, e - bias));
    }
  }
  if (!format.has_infinity) values.pop_back();  // all ones is NaN
  return values;
}

// Returns the bits of the smallest non-negative float that is >= value (or > value).
inline std::uint32_t first_bits(double value, bool is_beyond) {
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));  // a start for the search
  const auto is_in = [&](std::uint32_t b) {
    const double found = std::bit_cast<float>(b);
    return is_beyond ? found > value : found >= value;
  };
  while (bits > 0 && is_in(bits - 1)) --bits;
  while (!is_in(bits)) ++bits;
  return bits;
}

// Floats from `first` (bits, without sign) on have this code, up to the next run.
struct Run {
  std::uint32_t first;
  std::uint8_t code;
};

// Returns the codes of all finite positive floats, in ascending order: to nearest, ties to even,
// clipped at the largest.
inline std::vector<Run> runs_of(const Definition& format) {
  const std::vector<double> values = finite_values(format);
  std::vector<Run> runs;
  for (std::size_t code = 0; code < values.size(); ++code) {
    const bool is_odd = code % 2 != 0;  // the mantissa's last bit: a tie goes to the other code
    const std::uint32_t first =
        code > 0 ? first_bits((values[code - 1] + values[code]) / 2, is_odd) : 0;
    runs.push_back({first, static_cast<std::uint8_t>(code)});
  }
  return runs;
}

}  // namespace codec_test
