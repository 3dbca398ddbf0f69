// StepSummary: one round over all ranks, the stage between StepSignals and Estimates. Telemetry
// shows a round from its summary, so the size does not grow with the number of ranks. Statistics
// use only finite values; others are counted. Timings are the columns for statistics and estimates.
// Pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/columns.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/step_signals.h"

namespace cox {

// Spread of one quantity over the ranks that reported a finite value. Negative times and times of
// finished ranks do not count. All fields are zero if no rank counts.
struct Spread {
  double min = 0;
  double median = 0;  // of an even count: the mean of the two in the middle
  double p95 = 0;     // linear interpolation at 0.95 (n - 1)
  double max = 0;
  RankId rank_of_max{-1};  // the lowest one on ties
  std::int32_t count = 0;
};

// WorstRank is one of the ranks that worked longest in the round. slowdown_ratio = own seconds /
// median own seconds.
struct WorstRank {
  RankId rank{-1};
  Phase phase = Phase::other;  // with the largest excess over the phase's median
  double own_seconds = 0;
  double slowdown_ratio = 1;
};

inline constexpr std::size_t kWorstRanks = 5;

struct StepSummary {
  RoundId round{};
  StepId step{};               // the largest reported
  UnixTime now{};              // as in StepSignals
  std::int32_t reporting = 0;  // fresh reports
  std::int32_t missing = 0;
  std::int32_t finished = 0;
  std::int32_t watching = 0;
  std::uint32_t rounds = 0;  // largest number of rounds that one report covers

  std::array<Spread, kPhases> phases{};  // seconds per covered round
  Spread own_seconds{};                  // per covered round: work without waiting (is_own_work)
  Spread wall_seconds{};                 // per covered round
  Spread memory_used_ratio{};            // of the limit, if known
  std::vector<WorstRank> worst;          // <= kWorstRanks, slowest first; ties to lower ranks

  double loss = 0;                   // weighted mean over ranks with a finite loss; NaN = none
  double gradient_norm = 0;          // largest finite one reported; NaN = none
  std::int32_t nonfinite_ranks = 0;  // nonfinite loss or gradient
  RankId first_nonfinite_rank{-1};
  std::int32_t skipped_ranks = 0;  // reported step_skipped
  std::int32_t rolled_back_ranks = 0;
  std::int32_t repeated_ranks = 0;  // reported step_repeated
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t memory_peak_bytes = 0;  // largest over ranks

  std::uint64_t plan_held_min = 0;     // over the fresh reports of ranks that apply plans
  std::uint64_t plan_applied_max = 0;  // in force somewhere, so all ranks hold the plan
  bool full_plan_wanted = false;

  // Over the ranks that take part in the steps (RankSignal::applies_plans).
  std::int32_t applying = 0;
  std::uint64_t plan_applied_min = 0;
  float loss_scale_min = 0;             // 0 = no scaler at work
  double memory_peak_ratio = 0;         // the largest ratio to a known limit
  std::int32_t memory_limits_told = 0;  // reports, of any rank, with a limit
  // The number of reports with a fragment of each kind, so that readers can skip rounds without
  // one.
  std::array<std::int32_t, kFragmentKinds> fragments{};

  std::int32_t fragments_of(FragmentKind kind) const {
    return fragments[static_cast<std::size_t>(kind)];
  }
};

// The seconds per covered round of the ranks that worked in the round, column by column. Leaves out
// a rank that has finished, covers no round, or reports a negative or non-finite time.
struct Timings {
  std::vector<RankId> ranks;  // ascending
  Columns<kPhases> phases;    // phases[p][i] belongs to ranks[i]
  std::vector<double> own;    // sum over is_own_work phases
  std::vector<double> wall;
  std::vector<double> waiting;        // for the last rank, within communication; 0 = not measured
  std::vector<double> recompute;      // within backward: cost of memory actions
  std::vector<double> samples;        // per covered round; 0 if the rank counts none
  std::vector<std::uint32_t> report;  // index of the rank's report in `reports`
  // True if every rank separates waiting from communication, and no rank has the flag
  // without_queueing.
  bool all_measure_waiting = true;
  std::int32_t watching = 0;  // ranks that only watch
  std::uint64_t plan_applied_min = 0;

  std::span<const double> of(Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
  std::span<double> of(Phase phase) { return phases[static_cast<std::size_t>(phase)]; }
};

// Returns the columns of these reports. REQUIRES: the reports are in ascending ranks.
Timings timings_of(std::span<const RankSignal> reports);

// A round over all ranks, as columns and as a summary.
struct SeenRound {
  Timings timings;
  StepSummary summary;
};

// Reads each report once: thousands of reports are in no cache, so reading them is the main cost.
SeenRound see_round(const StepSignals& signals);
inline StepSummary summarize(const StepSignals& signals) {
  return see_round(signals).summary;
}

// Returns the spread of the values that belong to `ranks`, in linear time. REQUIRES: equal sizes,
// finite values, ascending ranks.
Spread spread_of(std::span<const double> values, std::span<const RankId> ranks);

struct RoundFacts {
  RoundId round{};
  StepId step{};
  double loss = 0;  // NaN if no rank had a finite one
  double gradient_norm = 0;
  double own_seconds_median = 0;
  double wall_seconds_median = 0;
  std::int32_t nonfinite_ranks = 0;
  std::uint64_t plan_applied = 0;
};

// History has short facts of the last rounds, for policies that compare rounds. Bounded. A part of
// the control state, so journalled, saved with the training state and restored.
class History {
 public:
  static constexpr std::size_t kCapacity = 256;

  void add(const StepSummary& summary);
  void add(const RoundFacts& facts);

  bool empty() const { return rounds_.empty(); }
  std::size_t size() const { return rounds().size(); }
  // Returns the last rounds, oldest first, at most kCapacity; valid until the next round is added.
  std::span<const RoundFacts> rounds() const {
    return std::span(rounds_).last(std::min(rounds_.size(), kCapacity));
  }

 private:
  std::vector<RoundFacts> rounds_;  // up to 2 kCapacity, so that many old ones go at a time
};

}  // namespace cox
