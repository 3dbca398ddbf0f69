// Speeds: how fast each rank works on its samples, in a job whose batch the plan divides. The part
// of the estimates (estimates.h) that follows each rank through time. Pure; linear in ranks.
//
// A speed is delivered time: seconds per sample of a rank's own work on its samples (data, forward,
// backward, compute), and beside it the seconds of a step that do not depend on samples
// (optimizer). Waiting and communication never enter. What slows all ranks alike is divided out
// (the median ratio to the levels), so that all levels are on one scale.
//
// A rank's level is the trimmed mean of its last reports while they are few, then an exponential
// mean over 64, outliers cut; two CUSUM tests a rank (cusum.h) notice a change of speed, slower or
// faster, and then the level jumps to the mean of the reports since the change.
//
// The part of a step's work that does not grow with its samples (launches, set-up) is a number of
// samples that cost as much; one for all ranks, 0 until known. Even shares cannot show it, changed
// ones do, because a rank with twice the samples needs less than twice the time. It is fitted to
// what all ranks needed before and after a change of shares, by least absolute deviations, so that
// a rank whose speed changed meanwhile does not matter.
//
// A rank that gets other memory actions works at another speed from then on, so its level begins
// anew.
//
// Reports do not count when their rank has finished, only watches or had no samples, when they
// cover a round under other shares or other actions, and when they are the first one under new
// ones.
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

// RankSpeed is what is known of one rank's speed. Times are in the unit of `level`; Speeds::scale
// makes seconds of them.
struct RankSpeed {
  double level = 0;           // seconds per sample; positive once `reports` is
  double fixed_seconds = 0;   // of a step, beside its samples
  double variance = 0;        // of the logarithm of a time, from step to step
  std::uint32_t reports = 0;  // behind `level`; 0 = not known
  std::uint32_t seen = 0;     // reports that counted since the start of the job
  std::uint32_t to_skip = 1;  // reports that do not count yet
  double slower = 0;          // CUSUM for a change to slower, and its reports since it was 0
  double faster = 0;          // the same for faster
  std::uint32_t slower_since = 0;
  std::uint32_t faster_since = 0;
  double samples = 0;  // of a step, in the newest report
  // Under the shares before these: seconds of a step (0 = not known), its samples, `seen` then.
  double work_before = 0;
  double samples_before = 0;
  std::uint32_t seen_before = 0;
  std::uint64_t actions = 0;                  // hash of those of its blocks in the newest plan
  std::uint64_t actions_plan = 0;             // number of the plan that brought them
  std::array<double, kRecentTimes> recent{};  // newest times; newest in place (seen - 1) % size

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

struct Speeds {
  std::vector<RankSpeed> ranks;  // one per rank
  double pooled_variance = 0;
  double pooled_samples = 0;
  double scale = 1;                    // seconds of now in a unit of RankSpeed::level
  double shared_seconds = 0;           // of a step that all ranks spend together (communication)
  double fixed_samples = 0;            // what a step costs beside its samples, in samples
  std::uint32_t changing = 0;          // ranks that may be about to change
  std::uint64_t shares_plan = 0;       // number of the plan that brought the present shares
  std::uint32_t rounds_of_shares = 0;  // that counted since then
  bool changed_since_shares = false;   // a rank's speed did, or what is believed about all of them
  std::vector<std::uint32_t> shares;   // of the newest plan
  std::uint64_t plan = 0;              // its number
  bool knows_actions = false;          // of that plan
  std::uint64_t actions_plan = 0;      // the largest of the ranks' numbers

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

// Returns what a new start of the job begins with: levels stay as a first guess, all counts begin
// anew.
Speeds after_restart(Speeds speeds);

// Learns from one round. `smallest_change` is the ratio of times from which a change matters, above
// 0. REQUIRES: `timings` were made from `reports`; all ranks have a place in `before`.
Speeds learn_speeds(Speeds before, std::span<const RankSignal> reports, const Timings& timings,
                    const Plan& plan, double smallest_change);

// Returns the seconds of now of the rank's own work for each sample. REQUIRES: its `reports` > 0.
double seconds_per_sample(const Speeds& speeds, std::size_t rank);

// Returns the deviation of the rank's level, as a part of it. REQUIRES: its `reports` > 0.
double level_deviation(const Speeds& speeds, std::size_t rank);

}  // namespace cox
