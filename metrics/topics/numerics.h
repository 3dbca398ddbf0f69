// The topic Numerics: the format that each block computes in and how well that goes, the loss
// scale, and where values arose that were not finite, each with the round that it is known from.
// A NumericsView is the topic's view, shared by all snapshots until something changes. Plain
// values; pure functions.
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

// Overflow is values that are not finite, with the block, pass and rank in which they arose, as the
// evidence of a round says. The newest few are kept.
struct Overflow {
  RoundId round{};
  StepId step{};
  UnixTime time{};          // when rank 0 judged that round, later than the step
  std::int32_t block = -1;  // -1 = outside of all blocks
  Pass pass = Pass::forward;
  RankId rank{-1};           // the lowest one that saw it; -1 = not known
  std::uint64_t values = 0;  // not finite, over all ranks; 0 = not counted
  float loss_scale = 0;      // in that round; 0 = no scaler at work
  bool was_skipped = false;  // the step was
  friend bool operator==(const Overflow&, const Overflow&) = default;
};

// Known is the newest value and the round that it is from.
struct Known {
  double value = 0;
  RankId rank{-1};  // where it was largest; -1 = a ratio over all ranks
  RoundId round{};
  bool is_known = false;
};

struct BlockNumerics {
  Precision format = Precision::fp32;   // in force
  Precision planned = Precision::fp32;  // in the newest plan
  std::uint64_t changes = 0;            // that took effect
  RoundId changed_round{};              // of the last one

  Known noise;      // noise over signal of gradients, mean over what was sampled
  Known underflow;  // of the values sampled: flushed to zero
  Known saturated;  // of the values sampled: clipped
  Known activation;
  Known gradient;
  std::array<std::uint64_t, 2> overflow_rounds{};  // index = Pass
  RoundId overflowed_round{};                      // of the last one

  std::shared_ptr<const Reason> why;     // of the last change in format; may be null
  std::shared_ptr<const Reason> newest;  // newest word on its format; may be null
};

// The newest known values of a block.
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

// PlanFormats is the formats of the newest plan.
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

// Returns the view after `record`; null where the record has nothing new. A value that a round does
// not report stays as it was last known.
std::shared_ptr<const NumericsView> numerics_after(const StepRecord& record,
                                                   const NumericsView& before);

// Returns the number of blocks in each format in force; index = Precision.
std::array<std::int32_t, kPrecisions> format_blocks(const NumericsView& view);

// Returns whether there is anything to show: a format other than fp32, a scaler, or an overflow.
bool is_at_work(const NumericsView& view);

// Returns the overflows of one round, in the order in which blocks run: forward ascending, backward
// descending. One outside of all blocks is reported only where the blocks were watched, or a policy
// said so.
std::vector<Overflow> overflows_of(const StepRecord& record, float loss_scale);

inline constexpr std::size_t kOverflowsKept = 16;
// Returns `kept`, oldest first, with the overflows of a newer round behind it. The first of a
// round, which is to blame, comes last.
std::vector<Overflow> with_overflows(const std::vector<Overflow>& kept,
                                     const std::vector<Overflow>& round);

// Returns "step 123, round 125: block h.2, backward, rank 3: 41 values not finite at loss scale
// 65536; the step was skipped"
std::string overflow_text(const JobFacts& job, const Overflow& overflow);

// Returns the scale in full: "65536", "0.5".
std::string scale_text(double scale);

// Returns the section of the status page; empty where there is nothing to show.
Record numerics_section(const Snapshot& snapshot);

Topic numerics_topic();

}  // namespace cox::metrics
