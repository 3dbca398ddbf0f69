// MemoryAction: what is done with the activations of a block between its forward and its backward.
// No action changes a bit of a gradient. MemoryFront: the trade between peak bytes and added time
// of one kind of rank, as points that no other plan beats in both; a budget is a lookup in it. Made
// by the planner before the first round and carried in JobFacts, so that policy `memory` (and a
// replay) needs no search. Plain values, pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// Values are part of the mask: two bits each, never renumber.
enum class MemoryAction : std::uint8_t { keep = 0, recompute = 1, offload = 2, tile = 3 };

inline constexpr std::array<std::string_view, 4> kMemoryActionNames = {"keep", "recompute",
                                                                       "offload", "tile"};
constexpr std::string_view to_string(MemoryAction a) {
  return kMemoryActionNames[static_cast<std::size_t>(a)];
}

// A set of actions: bit a set = MemoryAction a is in it.
using ActionSet = std::uint8_t;
inline constexpr ActionSet kEveryAction = 0xF;
constexpr ActionSet only(MemoryAction a) {
  return static_cast<ActionSet>(1u << static_cast<unsigned>(a));
}
constexpr bool contains(ActionSet set, MemoryAction a) {
  return (static_cast<unsigned>(set) >> static_cast<unsigned>(a) & 1u) != 0;
}
constexpr ActionSet without(ActionSet set, MemoryAction a) {
  return static_cast<ActionSet>(set & ~only(a));
}

// MemoryPoint is one plan that no other plan beats in both bytes and time.
struct MemoryPoint {
  std::int64_t peak_bytes = 0;        // highest in a step, counted as RankSignal::memory_peak_bytes
  std::int64_t added_us = 0;          // a step, beyond keep everywhere: compute and exposed copies
  std::vector<MemoryAction> actions;  // one per block (in the planner: one per stage)
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

using MemoryFront = std::vector<MemoryPoint>;  // ascending peak, strictly descending added time

inline constexpr std::size_t kMaxFrontPoints = 256;
inline constexpr std::size_t kMaxMemoryModels = 64;
inline constexpr std::int64_t kMaxModelValue = std::int64_t{1} << 50;  // of bytes and microseconds

// Returns the index of the fastest point within `budget_bytes`, or nothing when even the first is
// above it. A larger budget never gives a slower point. Takes logarithmic time.
std::optional<std::size_t> lookup(const MemoryFront& front, std::int64_t budget_bytes);

// Returns at most `most` of the points: both ends, and others spread over the bytes. REQUIRES:
// `most` is at least 2.
MemoryFront thinned(const MemoryFront& front, std::size_t most = kMaxFrontPoints);

// Sorts plans by bytes and drops those that another one beats.
MemoryFront front_of(std::vector<MemoryPoint> plans);

// MemoryModel is what is known about the memory of all ranks of one kind.
struct MemoryModel {
  MemoryFront front;                     // 1 .. kMaxFrontPoints; last: all blocks kept, if allowed
  std::int64_t base_bytes = 0;           // resident all through the step
  std::int64_t step_us = 0;              // of a step with all blocks kept; 0 = unknown
  std::vector<std::int64_t> kept_bytes;  // per block: what keep holds for backward; or empty
  // Samples of the step in which the model was measured; 0 when the peak does not depend on the
  // rank's share, because the rank works in micro-batches of equal size.
  std::uint64_t samples = 0;
  friend bool operator==(const MemoryModel&, const MemoryModel&) = default;
};

// Returns the peak that a plan measured at `peak_bytes` has in a step of `samples` (at most
// kMaxStepSamples). Bytes beyond the model's base_bytes grow in proportion to the samples, rounded
// up; base_bytes do not. Where the model does not depend on samples the peak stays `peak_bytes`.
// The result never falls as samples or bytes grow.
std::int64_t peak_with(const MemoryModel& model, std::int64_t peak_bytes, std::uint64_t samples);

// Returns the most samples with which peak_with() stays within `bytes`: 0 when not even one sample
// fits, kMaxStepSamples when any number does.
std::uint64_t largest_share(const MemoryModel& model, std::int64_t peak_bytes, std::int64_t bytes);

// MemoryFacts are known to rank 0 only. All fields are empty on the other ranks, and where nothing
// was measured.
struct MemoryFacts {
  std::vector<MemoryModel> models;           // one per distinct profile, <= kMaxMemoryModels
  std::vector<std::uint32_t> model_of_rank;  // index into models; empty = all model 0
  std::vector<std::int64_t> limit_bytes;     // per rank, of its device or share of a node; 0 or
                                             // empty = unknown
  friend bool operator==(const MemoryFacts&, const MemoryFacts&) = default;
};

// Returns invalid_argument naming the first field that does not fit a job of that size, or a front
// whose points are not in the order of MemoryFront.
Status validate(const MemoryFacts& facts, std::size_t ranks, std::size_t blocks);

struct MemoryCost {
  std::int64_t peak_bytes = 0;
  std::int64_t added_us = 0;
};

// Returns what `actions` cost: as much as the point of the front that is equal to them. Where they
// only keep more blocks than some point does, it returns an upper bound: that point's time, and its
// peak with all that these blocks keep. Returns nothing when they compare with no point.
std::optional<MemoryCost> cost_of(const MemoryModel& model, std::span<const MemoryAction> actions);

}  // namespace cox
