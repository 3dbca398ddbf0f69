// Excess: by how much each rank's work in one round was longer than expected, as a whole and by
// phase: log(1 + (seconds - expected seconds) / expected own work). A phase therefore shows its
// cost as a part of the whole. The first half of slowness.h, which combines rounds;
// docs/stragglers.md has the rules. Pure; linear in ranks.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "coordinator/core/columns.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/summary.h"

namespace cox {

// The phases of own work. Communication counts only if a rank's own part, without waiting, is
// measured.
inline constexpr std::array<Phase, 7> kOwnPhases = {
    Phase::data,      Phase::forward, Phase::backward,     Phase::compute,
    Phase::optimizer, Phase::other,   Phase::communication};
inline constexpr std::size_t kChannels = 1 + kOwnPhases.size();  // the whole, then the phases

inline constexpr double kBaselineRounds = 128;  // memory of the own past, in rounds
inline constexpr double kSurelySlow = 2;        // marks a rank that is confirmed to be slow

// ChannelColumns has one column per channel.
using ChannelColumns = Columns<kChannels>;

// With two ranks a median shows no outlier, and a single rank has no other to compare with.
constexpr bool compares_with_own_past(std::size_t ranks) {
  return ranks <= 2;
}

// SampleFacts says how the work of a step depends on its samples.
struct SampleFacts {
  double fixed_samples = 0;  // cost of a step besides its samples, in samples (speeds.h)
  bool by_plan = false;      // the plan gives each rank its samples, possibly none
};

// OwnPast has the usual seconds of a round, by channel and rank, as the reference for one or two
// ranks. With more ranks there are no rows.
struct OwnPast {
  double reference_samples = 0;  // samples at which times are compared; 0 = none seen
  ChannelColumns seconds;
  ChannelColumns at_equal_samples;

  static auto fields(auto& self) {
    return message("OwnPast", field(1, "reference_samples", self.reference_samples),
                   field(2, "seconds", self.seconds),
                   field(3, "at_equal_samples", self.at_equal_samples));
  }
};

// Own work is the sum of the phases. A rank's own part of communication counts if every compared
// rank measures its waiting (SignalFlag::waiting_measured) and ranks do not outnumber cores. The
// cost of memory actions (RankSignal::recompute_seconds) does not count, because the plan causes
// it. Rank 0's hosting never counts.
//
// The expected work is the median of the other ranks in the same round, or the rank's own past with
// at most two ranks. Two ranks are also compared with each other. If ranks had unequal samples,
// there are two excesses: of the times as measured, and of the times at equal samples. The lesser
// one counts, or for a slow or suspected rank the one at equal samples. With three ranks or more,
// if all count tokens, a sample is one of mean length.
struct Excess {
  std::vector<RankId> ranks;             // ranks that can be compared, ascending
  ChannelColumns of;                     // of[c][i] belongs to ranks[i]; 0 when not in use
  std::array<bool, kChannels> in_use{};  // false: no rank spent time there
  // With two ranks: each against the other one, by channel.
  std::array<std::array<double, 2>, kChannels> of_other{};
  double ordinary_seconds = 0;  // own work of the median rank, or the faster one of two
  double mean_samples = 0;      // mean over the ranks; 0 if some rank counts none
  OwnPast past;                 // after this round
};

// Returns the excess of each rank in this round, without rows if too few ranks can be compared.
// `reports` and `slow` have one entry per rank. `reports` is the number of reports before this
// round. `slow` is kSurelySlow for a confirmed rank, another value than 0 for a suspected one. The
// past of such ranks is not updated, except that a confirmed one of two follows the other rank's.
// For such ranks only the time at equal samples counts, so that a smaller share hides nothing.
// REQUIRES: `timings` and `summary` were made from `signals`; `past` fits the world.
Excess excess_of(Timings timings, std::span<const RankSignal> signals, const StepSummary& summary,
                 const SampleFacts& samples, std::span<const double> reports,
                 std::span<const double> slow, OwnPast past);

}  // namespace cox
