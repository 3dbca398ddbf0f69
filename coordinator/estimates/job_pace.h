// JobPace: whether the job as a whole got slower than it was. When all ranks slow down at once,
// nobody is a straggler and comparing ranks shows nothing (slowness.h); their own work
// against its past does. A part of the estimates. Pure.
//
// The pace of a round is the logarithm of an ordinary rank's own work for a sample (the
// median one's, of two the faster one's). Baseline and
// noise are learnt from the rounds under one plan, and anew under the next, which may change the
// work on purpose. Successive rounds resemble each other (one machine, one file system), so the
// noise that the test assumes is the long-run one: variance (1 + r) / (1 - r) for the
// autocorrelation r of neighbouring rounds.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/core/config.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/units.h"

namespace cox {

// SlowJob says that the whole job is slower than in its own past.
struct SlowJob {
  RoundId since{};            // the first slow round, as well as it can be told
  double slowdown_ratio = 1;  // mean since then, with its 95 % interval
  double slowdown_low = 1;
  double slowdown_high = 1;
  double rounds = 0;  // behind that mean
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

struct JobPace {
  std::optional<SlowJob> slow;
  std::uint64_t plan = 0;    // number of the plan under which it was learnt
  double rounds = 0;         // behind the baseline
  double baseline = 0;       // logarithm of seconds
  double variance = 0;       // of one round around it
  double covariance = 0;     // of neighbouring rounds
  double last_residual = 0;  // of the newest round
  double sum = 0;            // CUSUM
  double since = 0;          // the round in which `sum` last left 0
  double risen = 0;          // sum of the residuals since then

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

// PaceOfRound is what one round says of the job's pace.
struct PaceOfRound {
  RoundId round{};
  std::uint64_t plan = 0;         // number of the plan in force
  double seconds_per_sample = 0;  // of the median rank
  double seconds = 0;             // of that work in the round
  double least_rounds = 0;        // that a slowness must last, because pauses do not
};

// Learns from one round. A round without work teaches nothing.
JobPace learn_pace(JobPace before, const PaceOfRound& now, const StragglerConfig& settings);

}  // namespace cox
