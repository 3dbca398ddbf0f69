// The topic Numerics: the format of each block and its evidence, the loss scale, and overflows,
// each with the round of its newest value. The topic's view is a NumericsView, which snapshots
// share until a value changes. Plain values; pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "metrics/topic.h"

namespace cox::metrics {

enum class Pass : std::uint8_t { forward = 0, backward = 1 };
inline constexpr std::array<std::string_view, 2> kPassNames = {"forward", "backward"};
constexpr std::string_view to_string(Pass pass) {
  return kPassNames[static_cast<std::size_t>(pass)];
}

// Overflow is one occurrence of values that were not finite, from the evidence of a round: the
// block, pass and rank in which the values arose. The topic keeps the newest kOverflowsKept.
struct Overflow {
  RoundId round{};
  StepId step{};
  UnixTime time{};          // of rank 0's decision about the round, later than the step
  std::int32_t block = -1;  // -1 = outside of all blocks
  Pass pass = Pass::forward;
  RankId rank{-1};           // lowest rank that reported; -1 = not known
  std::uint64_t values = 0;  // not finite, over all ranks; 0 = not counted
  float loss_scale = 0;      // in that round; 0 = no scaler at work
  bool was_skipped = false;  // the optimizer step
  friend bool operator==(const Overflow&, const Overflow&) = default;
};

// Known is the newest value of a figure, and the round of the value.
struct Known {
  double value = 0;
  RankId rank{-1};  // rank with the largest value; -1 = a ratio over all ranks
  RoundId round{};
  bool is_known = false;
};

struct BlockNumerics {
  Precision format = Precision::fp32;   // in force
  Precision planned = Precision::fp32;  // in the newest plan
  std::uint64_t changes = 0;            // changes that took effect
  RoundId changed_round{};              // round of the last change

  Known noise;      // noise over signal of gradients, mean over the samples
  Known underflow;  // sampled values flushed to zero, as a part of all sampled
  Known saturated;  // sampled values clipped, as a part of all sampled
  Known activation;
  Known gradient;
  std::array<std::uint64_t, 2> overflow_rounds{};  // index = Pass
  RoundId overflowed_round{};                      // round of the last overflow

  std::shared_ptr<const Reason> why;     // reason of the last change in format; may be null
  std::shared_ptr<const Reason> newest;  // newest reason about the format; may be null
};

// KnownKind names a figure of a block.
struct KnownKind {
  std::string_view name;
  Known BlockNumerics::*member;
};
inline constexpr std::array<KnownKind, 5> kKnownKinds = {
    {{"gradient_noise", &BlockNumerics::noise},
     {"underflow", &BlockNumerics::underflow},
     {"saturated", &BlockNumerics::saturated},
     {"activation", &BlockNumerics::activation},
     {"gradient", &BlockNumerics::gradient}}};

// FormatChanges counts blocks that changed their format: changes[from][to].
using FormatChanges = std::array<std::array<std::uint64_t, kPrecisions>, kPrecisions>;

// PlanFormats are the formats of the newest plan.
struct PlanFormats {
  std::optional<PlanId> plan;
  bool is_in_force = false;
  std::vector<Precision> planned;  // one a block
};

struct NumericsView {
  std::vector<BlockNumerics> blocks;  // one a block of the job
  PlanFormats plan;
  float loss_scale = 0;  // newest known; 0 = no scaler at work
  FormatChanges changes{};
  std::vector<Overflow> overflows;                // the newest few, oldest first
  std::array<std::uint64_t, 2> outside_rounds{};  // overflows outside of all blocks; index = Pass
  std::uint64_t overflow_rounds = 0;              // rounds with an overflow anywhere

  const Overflow* last_overflow() const { return overflows.empty() ? nullptr : &overflows.back(); }
};

// Returns the view after `record`; null if the record has nothing new. A figure that a round does
// not report keeps its last value.
std::shared_ptr<const NumericsView> numerics_after(const StepRecord& record,
                                                   const NumericsView& before);

// Returns the number of blocks in each format in force; index = Precision.
std::array<std::int32_t, kPrecisions> format_blocks(const NumericsView& view);

// Returns whether the topic has anything to show: a format other than fp32, a scaler, or an
// overflow.
bool is_at_work(const NumericsView& view);

// Returns the overflows of one round, in the order in which blocks run: forward ascending, backward
// descending. An overflow outside of all blocks is reported only if the blocks were watched, or a
// policy's reason says so.
std::vector<Overflow> overflows_of(const StepRecord& record, float loss_scale);

inline constexpr std::size_t kOverflowsKept = 16;
// Returns `kept`, oldest first, followed by the overflows of a newer round. The round's first
// overflow, which caused the others, comes last.
std::vector<Overflow> with_overflows(const std::vector<Overflow>& kept,
                                     const std::vector<Overflow>& round);

// Returns a sentence: "step 123, round 125: block h.2, backward, rank 3: 41 values not finite at
// loss scale 65536; the step was skipped".
std::string overflow_text(const JobFacts& job, const Overflow& overflow);

// Returns the scale in full: "65536", "0.5".
std::string scale_text(double scale);

// Returns the section of the status page; empty if the topic has nothing to show.
Record numerics_section(const Snapshot& snapshot);

Topic numerics_topic();

}  // namespace cox::metrics
