// Strong types for numbers that must not be confused: a rank is not a step, a step is not a round.
// Trivially copyable, ordered, hashable through value().
//
// Round: one completed step reduction, the clock that all ranks share. Rounds never repeat. Step:
// the trainer's count of optimizer steps, which goes back after a rollback.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace cox {

template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr StrongId next() const { return StrongId(value_ + 1); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_ = 0;
};

using RankId = StrongId<struct RankTag, std::int32_t>;
using NodeId = StrongId<struct NodeTag, std::int32_t>;
using BlockId = StrongId<struct BlockTag, std::uint16_t>;
using RoundId = StrongId<struct RoundTag, std::uint64_t>;
using StepId = StrongId<struct StepTag, std::uint64_t>;
using ProfileId = StrongId<struct ProfileTag, std::uint16_t>;  // of an action profile

using Seconds = std::chrono::duration<double>;
using Nanoseconds = std::chrono::nanoseconds;

// Wall-clock time since the Unix epoch. coordinator/core and coordinator/policies get the time as
// an argument and never read a clock.
struct UnixTime {
  double seconds = 0;
  friend constexpr auto operator<=>(UnixTime, UnixTime) = default;
};

// Adds counts; a sum that does not fit becomes the largest count.
constexpr std::uint32_t add_saturating(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sum = a + b;
  return sum < a ? ~0u : sum;
}

// Returns the rank at index `place` of a list with one entry for each rank.
constexpr RankId rank_id(std::size_t place) {
  return RankId(static_cast<std::int32_t>(place));
}

inline constexpr RankId kRoot{0};  // hosts the coordinator
inline constexpr std::int32_t kMaxRanks = 1 << 20;
inline constexpr std::size_t kMaxBlocks = 1024;
inline constexpr std::uint64_t kMaxStepSamples = std::uint64_t{1} << 31;  // of all ranks, or of one

}  // namespace cox
