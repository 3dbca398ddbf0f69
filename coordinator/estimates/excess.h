// Excess: by how much each rank's work was longer in one round than it should have been, as a whole
// and by phase: log(1 + (seconds - expected seconds) / expected own work), so that a phase says
// which part of the whole it costs. The first half of slowness.h, which looks at many rounds. Pure;
// linear in ranks.
//
// Own work is that of the phases, with a rank's own part of communication where every compared rank
// tells it from waiting (SignalFlag::waiting_measured) and ranks do not outnumber cores, and
// without what its memory actions cost it (RankSignal::recompute_seconds), which is the plan's
// doing. Rank 0's hosting never counts.
//
// Expected is the median of the other ranks in the same round, or the rank's own past where there
// are at most two ranks; of two, each is also compared with the other one. Where ranks had unequal
// samples, the excess is the lesser of the one between times as they were and the one between times
// at equal samples; of ranks that are slow already it is the latter. Where all ranks count tokens
// and there are more than two, a sample is one of mean length.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "coordinator/core/columns.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/summary.h"

namespace cox {

// Of communication only a rank's own part counts, where it is measured: without waiting.
inline constexpr std::array<Phase, 7> kOwnPhases = {
    Phase::data,      Phase::forward, Phase::backward,     Phase::compute,
    Phase::optimizer, Phase::other,   Phase::communication};
inline constexpr std::size_t kChannels = 1 + kOwnPhases.size();  // the whole, then the phases

inline constexpr double kBaselineRounds = 128;  // how slowly the own past is forgotten
inline constexpr double kSurelySlow = 2;        // of a rank that is confirmed to be slow

// ChannelColumns has one column per channel.
using ChannelColumns = Columns<kChannels>;

// Two ranks cannot tell who is unusual, and one has nobody to compare with.
constexpr bool compares_with_own_past(std::size_t ranks) {
  return ranks <= 2;
}

// SampleFacts says how the work of a step depends on its samples.
struct SampleFacts {
  double fixed_samples = 0;  // what a step costs beside its samples, in samples (speeds.h)
  bool by_plan = false;      // the plan says who has how many, so a rank may rightly have none
};

// Seconds of a round, by channel and rank, that a rank is compared with where there are at most
// two; without rows when there are more.
struct OwnPast {
  double reference_samples = 0;  // what "equal samples" are; 0 = none seen
  ChannelColumns seconds;
  ChannelColumns at_equal_samples;

  static auto fields(auto& self) {
    return message("OwnPast", field(1, "reference_samples", self.reference_samples),
                   field(2, "seconds", self.seconds),
                   field(3, "at_equal_samples", self.at_equal_samples));
  }
};

struct Excess {
  std::vector<RankId> ranks;             // ascending; those that can be compared
  ChannelColumns of;                     // of[c][i] belongs to ranks[i]; 0 when not in use
  std::array<bool, kChannels> in_use{};  // false: no rank spent time there
  // Of two ranks, each against the other one, by channel.
  std::array<std::array<double, 2>, kChannels> of_other{};
  double ordinary_seconds =
      0;                    // of own work as a whole: the median rank's, of two the faster one's
  double mean_samples = 0;  // of a rank; 0 where some rank counts none
  OwnPast past;             // after this round
};

// Returns the excess of each rank in this round. `reports` and `slow` have one entry per rank: the
// number of reports seen before this round, and kSurelySlow for ranks that are slow already,
// another value than 0 for those that are suspected: their own past is not updated (of two ranks,
// one that is slow has its own moved as the other one's is), and only their time at equal samples
// counts, so that a smaller share hides nothing. The result has no rows when there are too few
// ranks to compare. REQUIRES: `timings` and `summary` were made from `signals`; `past` fits the
// world.
Excess excess_of(Timings timings, std::span<const RankSignal> signals, const StepSummary& summary,
                 const SampleFacts& samples, std::span<const double> reports,
                 std::span<const double> slow, OwnPast past);

}  // namespace cox
