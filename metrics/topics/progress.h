// The topic Progress: how far the job is, how fast it goes, where a step's time goes and how often
// a step went wrong. Its part of the snapshot is a ProgressView, which grows by one round at a time
// on the recording thread. Plain values; the rest is pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "metrics/histogram.h"
#include "metrics/topic.h"

namespace cox::metrics {

// RoundPoint is one round in short, for curves.
struct RoundPoint {
  RoundId round{};
  double loss = 0;  // NaN when no rank had a finite one
  double step_seconds = 0;
  double skew_ratio = 1;       // slowest own work / median
  double rate_per_second = 0;  // tokens, or samples where no tokens are reported
  std::uint64_t plan = 0;      // applied in that round
  float loss_scale = 0;        // 0 = no scaler at work
  bool was_skipped = false;    // the optimizer step was, on some rank
};

// RoundPoints are the newest rounds, oldest first, at most kPointsKept.
using RoundPoints = std::vector<RoundPoint>;
inline constexpr std::size_t kPointsKept = 300;
void add_point(RoundPoints& points, const RoundPoint& point);

// Seconds of a step: 10 ms .. 100 s in 1-2-5 steps.
inline constexpr std::array<double, 13> kStepBuckets = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                                                        2,    5,    10,   20,  50,  100};

struct ProgressView {
  RoundPoints points;
  double first_loss = std::numeric_limits<double>::quiet_NaN();  // the first finite one
  std::uint64_t samples = 0;                                     // totals since the start
  std::uint64_t tokens = 0;
  std::uint64_t nonfinite_loss_rounds = 0;
  std::uint64_t nonfinite_gradient_rounds = 0;
  std::uint64_t skipped_rounds = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t repeated_rounds = 0;  // in which a step was done again
  float loss_scale = 0;               // newest known; 0 = no scaler at work
  BucketCounts step_seconds{kStepBuckets};

  void add(const Round& round);
};

// Returns the median over the newest rounds; 0 before the first.
double typical_step_seconds(const ProgressView& view);

// Returns the seconds that the job still takes at its typical pace;
// nothing where its last step is not known, or nobody trains.
std::optional<double> seconds_left(const Snapshot& snapshot);

// Returns the largest loss scale among the ranks that trained; `before` where none of them did.
float loss_scale_of(const StepSignals& signals, float before);

Topic progress_topic();

}  // namespace cox::metrics
