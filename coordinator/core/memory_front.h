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

// One plan that no other plan beats in both bytes and time.
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

// The index of the fastest point within `budget_bytes`; none when even the first is above it.
// Logarithmic; a larger budget never gives a slower point.
std::optional<std::size_t> lookup(const MemoryFront& front, std::int64_t budget_bytes);

// At most `most` (>= 2) of the points, both ends among them, the others spread over the bytes.
MemoryFront thinned(const MemoryFront& front, std::size_t most = kMaxFrontPoints);

// Sorts plans by bytes and drops those that another one beats.
MemoryFront front_of(std::vector<MemoryPoint> plans);

// What is known about the memory of all ranks of one kind.
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

// The peak of a plan that was measured to take `peak_bytes`, in a step of `samples` (at most
// kMaxStepSamples). Bytes beyond the model's base_bytes grow in proportion to the samples, rounded
// up; base_bytes do not. The same bytes where the model does not depend on samples. Never falls as
// samples or bytes grow.
std::int64_t peak_with(const MemoryModel& model, std::int64_t peak_bytes, std::uint64_t samples);

// The most samples with which peak_with() stays within `bytes`; 0 = not even one sample fits,
// kMaxStepSamples = any number does.
std::uint64_t largest_share(const MemoryModel& model, std::int64_t peak_bytes, std::int64_t bytes);

// Known to rank 0 only: all empty on the others, and where nothing was measured.
struct MemoryFacts {
  std::vector<MemoryModel> models;           // one per distinct profile, <= kMaxMemoryModels
  std::vector<std::uint32_t> model_of_rank;  // index into models; empty = all model 0
  std::vector<std::int64_t> limit_bytes;     // per rank, of its device or share of a node; 0 or
                                             // empty = unknown
  friend bool operator==(const MemoryFacts&, const MemoryFacts&) = default;
};

// invalid_argument naming the first field that does not fit a job of that size, or a front that is
// none.
Status validate(const MemoryFacts& facts, std::size_t ranks, std::size_t blocks);

// Returns the costs of `actions`: those of the point that is equal, else, where they only keep more
// than some point, at most that point's peak and all that these blocks keep. None when nothing can
// be said.
struct MemoryCost {
  std::int64_t peak_bytes = 0;
  std::int64_t added_us = 0;
};
std::optional<MemoryCost> cost_of(const MemoryModel& model, std::span<const MemoryAction> actions);

}  // namespace cox
