// Precision: the number formats that a block can compute in. PrecisionFacts: the times of the
// blocks in each format on the job's devices, measured before the first round. JobFacts carries the
// facts (journalled), so that policy `precision` and a replay need no device. Plain values, pure
// functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"

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

// BlockFormats has the time of a block's forward and backward in each format, on the slowest rank.
// The index is a Precision; 0 = not measured.
struct BlockFormats {
  std::array<std::int64_t, kPrecisions> step_us{};
  friend bool operator==(const BlockFormats&, const BlockFormats&) = default;
};

// PrecisionFacts are known to rank 0 only. Empty on the other ranks, and if nothing was measured.
struct PrecisionFacts {
  std::vector<BlockFormats> blocks;  // one per block, or empty
  PrecisionSet emulated = 0;         // formats that some rank's device only imitates
  friend bool operator==(const PrecisionFacts&, const PrecisionFacts&) = default;
};

// Returns invalid_argument naming the first field that does not fit a job with this many blocks.
Status validate(const PrecisionFacts& facts, std::size_t blocks);

}  // namespace cox
