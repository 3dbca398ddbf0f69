// MemoryAction: the treatment of a block's activations between its forward and its backward. No
// action changes a bit of a gradient. MemoryFront: the trade between peak bytes and added time of
// one kind of rank, as points that no other plan beats in both; a budget is a lookup in the front.
// The planner makes fronts before the first round. JobFacts carries the fronts, so policy `memory`
// and a replay need no search. Plain values, pure functions.
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

// Recompute has levels. `recompute` drops everything that a block saved. Level n of 7 drops only a
// part: the storages that are cheapest to make again. Level 1 is the lightest. Only the SDK, which
// measured each level, knows the storages; all other code treats a level as an action with bytes
// and a time of its own. Values are part of masks and journals: never renumber.
enum class MemoryAction : std::uint8_t {
  keep = 0,
  recompute = 1,  // in full
  offload = 2,
  tile = 3,
  recompute_1 = 4,
  recompute_2 = 5,
  recompute_3 = 6,
  recompute_4 = 7,
  recompute_5 = 8,
  recompute_6 = 9,
  recompute_7 = 10,
};

inline constexpr unsigned kRecomputeLevels = 7;
inline constexpr MemoryAction kLastAction = MemoryAction::recompute_7;

inline constexpr std::array<std::string_view, 11> kMemoryActionNames = {
    "keep",        "recompute",   "offload",     "tile",        "recompute 1", "recompute 2",
    "recompute 3", "recompute 4", "recompute 5", "recompute 6", "recompute 7"};
constexpr std::string_view to_string(MemoryAction a) {
  return kMemoryActionNames[static_cast<std::size_t>(a)];
}

// Returns the words for sentences: "recompute 2 of 7" for a level, else the name.
constexpr std::string_view in_words(MemoryAction a) {
  constexpr std::array<std::string_view, 11> kWords = {"keep",
                                                       "recompute",
                                                       "offload",
                                                       "tile",
                                                       "recompute 1 of 7",
                                                       "recompute 2 of 7",
                                                       "recompute 3 of 7",
                                                       "recompute 4 of 7",
                                                       "recompute 5 of 7",
                                                       "recompute 6 of 7",
                                                       "recompute 7 of 7"};
  return kWords[static_cast<std::size_t>(a)];
}

// Returns the action of a level. REQUIRES: 1 <= n <= kRecomputeLevels.
constexpr MemoryAction recompute_level(unsigned n) {
  return static_cast<MemoryAction>(static_cast<unsigned>(MemoryAction::recompute_1) + n - 1);
}
// Returns 1 to kRecomputeLevels, or 0 for an action that is no level, such as full recompute.
constexpr unsigned level_of(MemoryAction a) {
  return a < MemoryAction::recompute_1
             ? 0
             : 1 + static_cast<unsigned>(a) - static_cast<unsigned>(MemoryAction::recompute_1);
}
// Returns whether the action is recompute, in full or at a level.
constexpr bool is_recompute(MemoryAction a) {
  return a == MemoryAction::recompute || level_of(a) > 0;
}

// The kinds of actions, for users' settings and metrics: recompute includes all its levels.
inline constexpr std::size_t kMemoryKinds = 4;
inline constexpr std::span<const std::string_view, kMemoryKinds> kMemoryKindNames(
    kMemoryActionNames.data(), kMemoryKinds);
constexpr MemoryAction kind_of(MemoryAction a) {
  return is_recompute(a) ? MemoryAction::recompute : a;
}

// From light to heavy, for ties and lists.
inline constexpr std::array<MemoryAction, kMemoryActionNames.size()> kActionsInOrder = {
    MemoryAction::keep,        MemoryAction::recompute_1, MemoryAction::recompute_2,
    MemoryAction::recompute_3, MemoryAction::recompute_4, MemoryAction::recompute_5,
    MemoryAction::recompute_6, MemoryAction::recompute_7, MemoryAction::recompute,
    MemoryAction::offload,     MemoryAction::tile};

// A set of actions: bit a set = MemoryAction a is a member.
using ActionSet = std::uint16_t;
inline constexpr ActionSet kEveryAction = 0x7FF;
constexpr ActionSet only(MemoryAction a) {
  return static_cast<ActionSet>(1u << static_cast<unsigned>(a));
}
constexpr bool contains(ActionSet set, MemoryAction a) {
  return (static_cast<unsigned>(set) >> static_cast<unsigned>(a) & 1u) != 0;
}
constexpr ActionSet without(ActionSet set, MemoryAction a) {
  return static_cast<ActionSet>(set & ~only(a));
}
// Returns all actions of the same kind: for recompute and its levels all of them.
inline constexpr ActionSet kEveryRecompute = 0x7F2;
constexpr ActionSet every(MemoryAction a) {
  return is_recompute(a) ? kEveryRecompute : only(a);
}
constexpr ActionSet without_kind(ActionSet set, MemoryAction a) {
  return static_cast<ActionSet>(set & ~every(a));
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

// Returns the index of the fastest point within `budget_bytes`. Returns nothing if no point fits. A
// larger budget never gives a slower point. Takes logarithmic time.
std::optional<std::size_t> lookup(const MemoryFront& front, std::int64_t budget_bytes);

// Returns at most `most` of the points: both ends, and others spread over the bytes. REQUIRES:
// `most` is at least 2.
MemoryFront thinned(const MemoryFront& front, std::size_t most = kMaxFrontPoints);

// Returns the plans as a front: sorted by bytes, without plans that another plan beats.
MemoryFront front_of(std::vector<MemoryPoint> plans);

// MemoryModel has the measured memory of all ranks of one kind.
struct MemoryModel {
  MemoryFront front;                     // 1 .. kMaxFrontPoints; last: all blocks kept, if allowed
  std::int64_t base_bytes = 0;           // resident during the whole step
  std::int64_t step_us = 0;              // of a step with all blocks kept; 0 = unknown
  std::vector<std::int64_t> kept_bytes;  // per block: bytes that keep holds for backward; or empty
  // Samples of the step in which the model was measured. 0 if the peak does not depend on the
  // rank's share, because the rank works in micro-batches of equal size.
  std::uint64_t samples = 0;
  friend bool operator==(const MemoryModel&, const MemoryModel&) = default;
};

// Returns the peak, in a step of `samples` (at most kMaxStepSamples), of a plan measured at
// `peak_bytes`. Bytes beyond the model's base_bytes grow in proportion to the samples, rounded up;
// base_bytes do not grow. If the model does not depend on samples, the peak stays `peak_bytes`. The
// result never falls as samples or bytes grow.
std::int64_t peak_with(const MemoryModel& model, std::int64_t peak_bytes, std::uint64_t samples);

// Returns the largest number of samples for which peak_with() stays within `bytes`. Returns 0 if
// one sample does not fit, and kMaxStepSamples if any number fits.
std::uint64_t largest_share(const MemoryModel& model, std::int64_t peak_bytes, std::int64_t bytes);

// MemoryFacts are known to rank 0 only. All fields are empty on the other ranks, and if nothing was
// measured.
struct MemoryFacts {
  std::vector<MemoryModel> models;           // one per distinct profile, <= kMaxMemoryModels
  std::vector<std::uint32_t> model_of_rank;  // index into models; empty = all model 0
  std::vector<std::int64_t> limit_bytes;     // per rank: device or part of node; 0, empty: unknown
  friend bool operator==(const MemoryFacts&, const MemoryFacts&) = default;
};

// Returns invalid_argument naming the first field that does not fit a job of this size, or a front
// whose points are not in the order of MemoryFront.
Status validate(const MemoryFacts& facts, std::size_t ranks, std::size_t blocks);

struct MemoryCost {
  std::int64_t peak_bytes = 0;
  std::int64_t added_us = 0;
};

// Returns the cost of `actions`: that of the equal point of the front. If `actions` only keep more
// blocks than some point, returns an upper bound: that point's time, and its peak plus the kept
// bytes of these blocks. Returns nothing if `actions` compare with no point.
std::optional<MemoryCost> cost_of(const MemoryModel& model, std::span<const MemoryAction> actions);

// Returns whether each block may have its action. `allowed` has a set for each block.
bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed);

// Returns the front of the allowed points. A point with a forbidden action enters with allowed
// actions for the blocks concerned; its bytes are then an upper bound.
MemoryFront usable_front(const MemoryModel& model, std::span<const ActionSet> allowed);

}  // namespace cox
