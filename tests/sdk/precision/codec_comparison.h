// The codec beside the definitions of float_reference.h: where codes begin and end, and over floats
// of all sizes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "tests/sdk/precision/float_reference.h"

namespace codec_test {

constexpr std::uint32_t kInfinityBits = 0x7F800000;
constexpr std::uint32_t kNoDifference = kInfinityBits;

// Returns how many floats of either sign get another code, of the first and the last one of each.
inline int wrong_borders(const Definition& format, Rounding rounding, OverflowRule overflow) {
  const std::vector<Run> runs = runs_of(format, rounding, overflow);
  const auto differ = [&](std::uint32_t bits, std::uint16_t code) {
    const auto minus = static_cast<std::uint16_t>(code | 1u << (format.bits - 1));
    const auto code_of = [&](std::uint32_t one) {
      return cox::detail::encode(format.format, std::bit_cast<float>(one), rounding, overflow);
    };
    return (code_of(bits) != code) + (code_of(bits | 1u << 31) != minus);
  };
  int wrong = 0;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    wrong += differ(runs[run].first, runs[run].code);
    if (run > 0) wrong += differ(runs[run].first - 1, runs[run - 1].code);
  }
  return wrong;
}

// Codes of floats in ascending order, as the definition gives them.
template <class Code>
class ExpectedCodes {
 public:
  ExpectedCodes(const Definition& format, Rounding rounding, OverflowRule overflow,
                std::uint32_t sign)
      : runs_(runs_of(format, rounding, overflow)), sign_(sign << (format.bits - 1)) {}

  // Of `first`, `first` + stride and so on. REQUIRES: `first` is at least that of the last call.
  void fill(std::uint32_t first, std::uint32_t stride, std::vector<Code>& codes) {
    for (std::size_t i = 0; i < codes.size();) {
      const auto bits = static_cast<std::uint32_t>(first + i * stride);
      while (at_ + 1 < runs_.size() && runs_[at_ + 1].first <= bits) ++at_;
      std::size_t count = codes.size() - i;
      if (at_ + 1 < runs_.size()) {
        count = std::min<std::size_t>(count, (runs_[at_ + 1].first - bits - 1) / stride + 1);
      }
      std::fill_n(codes.begin() + static_cast<std::ptrdiff_t>(i), count,
                  static_cast<Code>(runs_[at_].code | sign_));
      i += count;
    }
  }

 private:
  std::vector<Run> runs_;
  std::uint32_t sign_;
  std::size_t at_ = 0;
};

// One finite float of `stride`, of one sign, in batches. Returns the bits, without sign, of the
// first that differs, or kNoDifference.
template <class Code>
std::uint32_t first_difference(const Definition& format, Rounding rounding, OverflowRule overflow,
                               std::uint32_t stride, std::uint32_t sign) {
  constexpr std::uint32_t kBatch = 1u << 16;
  ExpectedCodes<Code> definition(format, rounding, overflow, sign);
  std::vector<float> values(kBatch);
  std::vector<Code> expected(kBatch);
  std::vector<Code> found(kBatch);
  for (std::uint32_t first = 0; first < kInfinityBits; first += kBatch * stride) {
    const std::size_t count = std::min(kBatch, (kInfinityBits - first - 1) / stride + 1);
    values.resize(count);
    expected.resize(count);
    found.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      values[i] = std::bit_cast<float>((first + i * stride) | (sign << 31));
    }
    definition.fill(first, stride, expected);
    cox::detail::encode(format.format, values, found, rounding, overflow);
    if (expected == found) continue;
    const auto differs = std::ranges::mismatch(expected, found).in1 - expected.begin();
    return first + static_cast<std::uint32_t>(differs) * stride;
  }
  return kNoDifference;
}

// Of both signs. A stride of 1 looks at every finite float.
inline std::uint32_t first_difference(const Definition& format, Rounding rounding,
                                      OverflowRule overflow, std::uint32_t stride) {
  std::uint32_t first = kNoDifference;
  for (const std::uint32_t sign : {0u, 1u}) {
    first = std::min(
        first, format.bits == 8
                   ? first_difference<std::uint8_t>(format, rounding, overflow, stride, sign)
                   : first_difference<std::uint16_t>(format, rounding, overflow, stride, sign));
  }
  return first;
}

}  // namespace codec_test
