// The topic Numerics: the format that each block computes in and how well that goes, the loss
// scale, and where values arose that were not finite, each with the round that it is known from.
// Its part of the snapshot is a NumericsView, made by NumericsFold and shared by all snapshots
// until something changes; immutable once published. Plain values; pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/record.h"
#include "metrics/topics/overflow_log.h"

namespace cox::metrics {

struct Snapshot;
struct Topic;

// A ratio and the round that it is from.
struct KnownRatio {
  double value = 0;
  RoundId round{};
  bool is_known = false;
};

struct KnownMagnitude {
  double value = 0;
  RankId rank{-1};  // where it was largest
  RoundId round{};
  bool is_known = false;
};

struct BlockNumerics {
  Precision format = Precision::fp32;   // in force
  Precision planned = Precision::fp32;  // in the newest plan
  std::uint64_t changes = 0;            // that took effect
  RoundId changed_round{};              // of the last one

  KnownRatio noise;      // noise over signal of gradients, mean over what was sampled
  KnownRatio underflow;  // of the values sampled: flushed to zero
  KnownRatio saturated;  // of the values sampled: clipped
  KnownMagnitude activation;
  KnownMagnitude gradient;
  std::array<std::uint64_t, 2> overflow_rounds{};  // index = Pass
  RoundId overflowed_round{};                      // of the last one

  std::shared_ptr<const Reason> why;     // of the last change in format; may be null
  std::shared_ptr<const Reason> newest;  // newest word on its format; may be null
};

// Formats before and after, by how many blocks changed so: changes[from][to].
using FormatChanges = std::array<std::array<std::uint64_t, kPrecisions>, kPrecisions>;

struct NumericsView {
  std::vector<BlockNumerics> blocks;  // one a block of the job
  float loss_scale = 0;               // newest known; 0 = no scaler at work
  RoundId loss_scale_round{};
  FormatChanges changes{};
  std::vector<Overflow> overflows;                // the newest few, oldest first
  std::array<std::uint64_t, 2> outside_rounds{};  // overflows outside of all blocks; index = Pass
  std::uint64_t overflow_rounds = 0;              // rounds with an overflow anywhere

  const Overflow* last_overflow() const { return overflows.empty() ? nullptr : &overflows.back(); }
};

// Blocks in each format in force; index = Precision.
std::array<std::int32_t, kPrecisions> format_blocks(const NumericsView& view);

// Returns whether there is anything to show: a format other than fp32, a scaler, or an overflow.
bool is_at_work(const NumericsView& view);

// Returns the section of the status page; empty where there is nothing to show.
std::string numerics_section(const Snapshot& snapshot);

Topic numerics_topic();

}  // namespace cox::metrics
