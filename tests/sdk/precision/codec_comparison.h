// Compares the codec with the definitions of float_reference.h: at the borders of codes, and over
// floats of all sizes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "tests/sdk/precision/float_reference.h"

namespace codec_test {

constexpr std::uint32_t kInfinityBits = 0x7F800000;
constexpr std::uint32_t kNoDifference = kInfinityBits;

inline std::vector<std::uint8_t> codes_of(FloatFormat format, const std::vector<float>& values) {
  std::vector<std::uint8_t> codes(values.size());
  cox::detail::quantize(format, values, 1, codes);
  return codes;
}

// Returns how many floats of either sign get a wrong code, among the first and last of each code.
inline int wrong_borders(const Definition& format) {
  const std::vector<Run> runs = runs_of(format);
  std::vector<float> values;
  std::vector<std::uint8_t> expected;
  const auto add = [&](std::uint32_t bits, std::uint8_t code) {
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(-values.back());
    expected.push_back(code);
    expected.push_back(code | 0x80);
  };
  for (std::size_t run = 0; run < runs.size(); ++run) {
    add(runs[run].first, runs[run].code);
    if (run > 0) add(runs[run].first - 1, runs[run - 1].code);
  }
  const std::vector<std::uint8_t> found = codes_of(format.format, values);
  int wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != expected[i];
  return wrong;
}

// Codes of floats in ascending order, by definition.
class ExpectedCodes {
 public:
  ExpectedCodes(const Definition& format, std::uint32_t sign)
      : runs_(runs_of(format)), sign_(sign << 7) {}

  // Fills in the codes of `first`, `first` + stride and so on. REQUIRES: `first` is at least that
  // of the last call.
  void fill(std::uint32_t first, std::uint32_t stride, std::vector<std::uint8_t>& codes) {
    for (std::size_t i = 0; i < codes.size();) {
      const auto bits = static_cast<std::uint32_t>(first + i * stride);
      while (at_ + 1 < runs_.size() && runs_[at_ + 1].first <= bits) ++at_;
      std::size_t count = codes.size() - i;
      if (at_ + 1 < runs_.size()) {
        count = std::min<std::size_t>(count, (runs_[at_ + 1].first - bits - 1) / stride + 1);
      }
      std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(i), count,
                  static_cast<std::uint8_t>(runs_[at_].code | sign_));
      i += count;
    }
  }

 private:
  std::vector<Run> runs_;
  std::uint32_t sign_;
  std::size_t at_ = 0;
};

// Tests every `stride`-th finite float of one sign, in batches. Returns the bits, without sign, of
// the first difference, or kNoDifference.
inline std::uint32_t first_difference(const Definition& format, std::uint32_t stride,
                                      std::uint32_t sign) {
  constexpr std::uint32_t kBatch = 1u << 16;
  ExpectedCodes definition(format, sign);
  std::vector<float> values(kBatch);
  std::vector<std::uint8_t> expected(kBatch);
  for (std::uint32_t first = 0; first < kInfinityBits; first += kBatch * stride) {
    const std::size_t count = std::min(kBatch, (kInfinityBits - first - 1) / stride + 1);
    values.resize(count);
    expected.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      values[i] = std::bit_cast<float>((first + i * stride) | (sign << 31));
    }
    definition.fill(first, stride, expected);
    const std::vector<std::uint8_t> found = codes_of(format.format, values);
    if (expected == found) continue;
    const auto differs = std::ranges::mismatch(expected, found).in1 - expected.begin();
    return first + static_cast<std::uint32_t>(differs) * stride;
  }
  return kNoDifference;
}

// Tests both signs. A stride of 1 covers every finite float.
inline std::uint32_t first_difference(const Definition& format, std::uint32_t stride) {
  return std::min(first_difference(format, stride, 0), first_difference(format, stride, 1));
}

}  // namespace codec_test
