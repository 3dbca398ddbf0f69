// Precision: the number formats that a block can compute in, and what is known of each. Plain
// values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cox {

// Values are part of the mask: two bits each, never renumber.
enum class Precision : std::uint8_t { fp32 = 0, bf16 = 1, fp16 = 2, fp8 = 3 };

inline constexpr std::size_t kPrecisions = 4;
inline constexpr std::array<std::string_view, kPrecisions> kPrecisionNames = {"fp32", "bf16",
                                                                              "fp16", "fp8"};
constexpr std::string_view to_string(Precision p) {
  return kPrecisionNames[static_cast<std::size_t>(p)];
}

// A set of formats: bit p = Precision p.
using PrecisionSet = std::uint8_t;

constexpr PrecisionSet only(Precision p) {
  return static_cast<PrecisionSet>(1u << static_cast<unsigned>(p));
}
constexpr bool contains(PrecisionSet set, Precision p) {
  return (set >> static_cast<unsigned>(p) & 1u) != 0;
}

}  // namespace cox
