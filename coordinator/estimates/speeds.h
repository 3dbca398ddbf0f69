// Speeds: how fast each rank works on its samples, in a job whose batch the plan divides. The part
// of the estimates (estimates.h) that follows each rank through time. A speed is measured as
// seconds per sample of a rank's own work on its samples (data, forward, backward, compute). The
// seconds of a step that do not depend on samples (optimizer) are kept apart. Waiting and
// communication never count. Pure; linear in ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"

namespace cox {

inline constexpr std::size_t kRecentTimes = 8;

// RankSpeed is the state of one rank's speed. Times are in the unit of `level`; Speeds::scale
// converts to seconds.
//
// The level is the trimmed mean of the rank's last reports while they are few, then an exponential
// mean over 64 reports, with outliers cut. Two CUSUM tests a rank (cusum.h) notice a change to
// slower or faster. The level then jumps to the mean of the reports since the change. A rank that
// gets other memory actions works at another speed, so its level begins anew.
//
// A report does not count if its rank has finished, only watches or had no samples, or if the
// report covers a round under other shares or other actions. The first report under new ones does
// not count either.
struct RankSpeed {
  double level = 0;           // seconds per sample; positive if `reports` is
  double fixed_seconds = 0;   // seconds of a step that do not depend on samples
  double variance = 0;        // of the logarithm of a time, from step to step
  std::uint32_t reports = 0;  // reports in `level`; 0 = not known
  std::uint32_t seen = 0;     // reports that counted since the start of the job
  std::uint32_t to_skip = 1;  // reports that do not count yet
  double slower = 0;          // CUSUM for a change to slower
  double faster = 0;          // CUSUM for a change to faster
  std::uint32_t slower_since = 0;
  std::uint32_t faster_since = 0;
  double samples = 0;  // of a step, in the newest report
  // Under the shares before: seconds of a step (0 = not known), its samples, and `seen` at the
  // change.
  double work_before = 0;
  double samples_before = 0;
  std::uint32_t seen_before = 0;
  std::uint64_t actions = 0;                  // hash of the rank's actions in the newest plan
  std::uint64_t actions_plan = 0;             // number of the plan that brought the actions
  std::array<double, kRecentTimes> recent{};  // newest at index (seen - 1) % size

  static auto fields(auto& self) {
    return message(
        "RankSpeed", field(1, "level", self.level), field(2, "fixed_seconds", self.fixed_seconds),
        field(3, "variance", self.variance), field(4, "reports", self.reports),
        field(5, "seen", self.seen), field(6, "to_skip", self.to_skip),
        field(7, "slower", self.slower), field(8, "faster", self.faster),
        field(9, "slower_since", self.slower_since), field(10, "faster_since", self.faster_since),
        field(11, "samples", self.samples), field(12, "work_before", self.work_before),
        field(13, "samples_before", self.samples_before),
        field(14, "seen_before", self.seen_before), field(15, "actions", self.actions),
        field(16, "actions_plan", self.actions_plan), field(17, "recent", self.recent));
  }
};

// Speeds is the state of all ranks. A factor that slows all ranks alike, the median ratio to the
// levels, is divided out and kept in `scale`, so that all levels are on one scale.
//
// fixed_samples is the part of a step's work that does not grow with its samples (launches,
// set-up), as a number of samples of the same cost. One number serves all ranks; 0 = not known.
// Even shares cannot show the number. Changed shares can, because a rank with twice the samples
// needs less than twice the time. The number is fitted to all ranks' times before and after a
// change of shares, by least absolute deviations, so that a rank whose speed changed meanwhile does
// not matter.
struct Speeds {
  std::vector<RankSpeed> ranks;  // one per rank
  double pooled_variance = 0;
  double pooled_samples = 0;
  double scale = 1;                    // present seconds in a unit of RankSpeed::level
  double shared_seconds = 0;           // of communication in a step, common to all ranks
  double fixed_samples = 0;            // cost of a step besides its samples, in samples
  std::uint32_t changing = 0;          // ranks whose speed may be changing
  std::uint64_t shares_plan = 0;       // number of the plan that brought the present shares
  std::uint32_t rounds_of_shares = 0;  // counted rounds since then
  bool changed_since_shares = false;   // some rank's speed changed, or fixed_samples did
  std::vector<std::uint32_t> shares;   // of the newest plan
  std::uint64_t plan = 0;              // number of the newest plan
  bool knows_actions = false;          // of that plan
  std::uint64_t actions_plan = 0;      // the largest `actions_plan` of the ranks

  static auto fields(auto& self) {
    return message("Speeds", field(1, "ranks", self.ranks),
                   field(2, "pooled_variance", self.pooled_variance),
                   field(3, "pooled_samples", self.pooled_samples), field(4, "scale", self.scale),
                   field(5, "shared_seconds", self.shared_seconds),
                   field(6, "fixed_samples", self.fixed_samples),
                   field(7, "changing", self.changing), field(8, "shares_plan", self.shares_plan),
                   field(9, "rounds_of_shares", self.rounds_of_shares),
                   field(10, "changed_since_shares", self.changed_since_shares),
                   field(11, "shares", self.shares), field(12, "plan", self.plan),
                   field(13, "knows_actions", self.knows_actions),
                   field(14, "actions_plan", self.actions_plan));
  }
  // Returns whether the numbers can have come from learn_speeds().
  bool is_sane() const;
};

// Returns the state in which nothing is known about `ranks` ranks.
Speeds fresh_speeds(std::size_t ranks);

// Returns the state for a new start of the job: levels stay as a first guess, all counts begin
// anew.
Speeds after_restart(Speeds speeds);

// Learns from one round. `smallest_change` is the ratio of times from which a change matters; above
// 0. REQUIRES: `timings` were made from `reports`; all ranks have an entry in `before`.
Speeds learn_speeds(Speeds before, std::span<const RankSignal> reports, const Timings& timings,
                    const Plan& plan, double smallest_change);

// Returns the present seconds of the rank's own work for each sample. REQUIRES: its `reports` > 0.
double seconds_per_sample(const Speeds& speeds, std::size_t rank);

// Returns the ratio of the level's deviation to the rank's level. REQUIRES: its `reports` > 0.
double level_deviation(const Speeds& speeds, std::size_t rank);

}  // namespace cox
