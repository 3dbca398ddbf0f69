// The topic Progress: the job's position and pace, the phases of a step, and the number of failed
// steps. The topic's view is a ProgressView, which grows by one round at a time on the recording
// thread. Plain values; the functions are pure.
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

// RoundPoint is a summary of one round, for curves.
struct RoundPoint {
  RoundId round{};
  double loss = 0;  // NaN if no rank had a finite loss
  double step_seconds = 0;
  double skew_ratio = 1;       // slowest own work / median
  double rate_per_second = 0;  // tokens, or samples if no rank reports tokens
  std::uint64_t plan = 0;      // applied in that round
  float loss_scale = 0;        // 0 = no scaler at work
  bool was_skipped = false;    // some rank skipped the optimizer step
};

// RoundPoints are the newest rounds, oldest first, at most kPointsKept.
using RoundPoints = std::vector<RoundPoint>;
inline constexpr std::size_t kPointsKept = 300;
void add_point(RoundPoints& points, const RoundPoint& point);

// Bounds of a step's seconds: 10 ms .. 100 s in 1-2-5 steps.
inline constexpr std::array<double, 13> kStepBuckets = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                                                        2,    5,    10,   20,  50,  100};

struct ProgressView {
  RoundPoints points;
  double first_loss = std::numeric_limits<double>::quiet_NaN();  // the first finite loss
  std::uint64_t samples = 0;                                     // totals since the start
  std::uint64_t tokens = 0;
  std::uint64_t nonfinite_loss_rounds = 0;
  std::uint64_t nonfinite_gradient_rounds = 0;
  std::uint64_t skipped_rounds = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t repeated_rounds = 0;  // rounds in which a step was repeated
  float loss_scale = 0;               // newest known; 0 = no scaler at work
  BucketCounts step_seconds{kStepBuckets};

  void add(const Round& round);
};

// Returns the median over the newest rounds; 0 before the first.
double typical_step_seconds(const ProgressView& view);

// Returns the remaining seconds of the job at its typical pace; nullopt if the job's last step is
// unknown or no rank trains.
std::optional<double> seconds_left(const Snapshot& snapshot);

// Returns the largest loss scale among the ranks that trained; `before` if no rank trained.
float loss_scale_of(const StepSignals& signals, float before);

Topic progress_topic();

}  // namespace cox::metrics
