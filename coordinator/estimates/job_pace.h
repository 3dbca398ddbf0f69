// JobPace: detects that the job as a whole got slower. If all ranks slow down at once, a comparison
// of ranks shows nothing (slowness.h), but their own work against its past does. A part of the
// estimates. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/core/config.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/units.h"

namespace cox {

// SlowJob means that the whole job is slower than in its own past.
struct SlowJob {
  RoundId since{};            // the first slow round, as an estimate
  double slowdown_ratio = 1;  // mean since `since`, with its 95 % interval
  double slowdown_low = 1;
  double slowdown_high = 1;
  double rounds = 0;  // rounds in the mean
  double rarity = 0;  // noise alone looks like this once in 10^rarity rounds
  double recovery = 0;

  static auto fields(auto& self) {
    return message("SlowJob", field(1, "since", self.since),
                   field(2, "slowdown_ratio", self.slowdown_ratio),
                   field(3, "slowdown_low", self.slowdown_low),
                   field(4, "slowdown_high", self.slowdown_high), field(5, "rounds", self.rounds),
                   field(6, "rarity", self.rarity), field(7, "recovery", self.recovery));
  }
};

// JobPace follows the pace of the job. The pace of a round is the logarithm of an ordinary rank's
// own work for a sample: the median rank's, or the faster one's of two. Baseline and noise are
// learnt anew under each plan, because a plan may change the work on purpose. Successive rounds
// resemble each other (one machine, one file system), so the test assumes the long-run variance:
// `variance` times (1 + r) / (1 - r), with r the autocorrelation of neighbouring rounds.
struct JobPace {
  std::optional<SlowJob> slow;
  std::uint64_t plan = 0;    // number of the plan of these rounds
  double rounds = 0;         // rounds in the baseline
  double baseline = 0;       // logarithm of seconds
  double variance = 0;       // of one round around the baseline
  double covariance = 0;     // of neighbouring rounds
  double last_residual = 0;  // of the newest round
  double sum = 0;            // CUSUM
  double since = 0;          // the round in which `sum` last left 0
  double risen = 0;          // sum of the residuals since `since`

  static auto fields(auto& self) {
    return message("JobPace", field(1, "slow", self.slow), field(2, "plan", self.plan),
                   field(3, "rounds", self.rounds), field(4, "baseline", self.baseline),
                   field(5, "variance", self.variance), field(6, "covariance", self.covariance),
                   field(7, "last_residual", self.last_residual), field(8, "sum", self.sum),
                   field(9, "since", self.since), field(10, "risen", self.risen));
  }
  // Returns whether the numbers can have come from learn_pace().
  bool is_sane() const;
};

// PaceOfRound is the evidence of one round about the job's pace.
struct PaceOfRound {
  RoundId round{};
  std::uint64_t plan = 0;         // number of the plan in force
  double seconds_per_sample = 0;  // of the median rank
  double seconds = 0;             // the median rank's own work in the round
  double least_rounds = 0;        // duration of a slowness that pauses do not reach
};

// Learns from one round. A round without work teaches nothing.
JobPace learn_pace(JobPace before, const PaceOfRound& now, const StragglerConfig& settings);

}  // namespace cox
