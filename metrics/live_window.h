// Turns the newest steps of a running job into a RunRecord like that of its run directory, so that
// `cox analyze` findings are available during the run. Each report of a rank becomes the row that
// the rank records for that step; rows become a RunRecord through the text of steps.jsonl.
//
//   StepRecord -> LiveRound -> row_of() -> step_line() -> io::StepLines -> RunRecord
//
// A report of several steps is one row of means, which counts as that many steps in a finding's
// cost. `timestamp` is rank 0's. Plain values; the functions are pure.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/decide/record.h"
#include "metrics/analysis/findings/finding.h"
#include "metrics/analysis/findings/run_view.h"
#include "metrics/records/run_record.h"
#include "metrics/records/step_row.h"

namespace cox::metrics {

// LiveRound is the part of a round that a window keeps.
struct LiveRound {
  UnixTime now{};
  // Reports of the ranks that trained in the round, ascending. Each fragment is the newest
  // allocator evidence of its rank, of kind `none` if the rank has sent none.
  std::vector<RankSignal> reports;
  std::shared_ptr<const Plan> plan;  // applied by these ranks; null = unknown
};
using LiveRounds = std::vector<std::shared_ptr<const LiveRound>>;  // oldest first

// The most steps in a window, and the most rows for many ranks: 1,024 ranks have 64 steps. A window
// takes about 270 bytes a row.
inline constexpr std::size_t kWindowSteps = 512;
inline constexpr std::size_t kWindowRows = 65'536;

// Returns how many rounds a window of so many ranks holds, at least 32.
std::size_t window_rounds(std::size_t ranks);

// RoundShelf keeps facts of earlier rounds that later rounds need: the newest plans, because ranks
// apply a plan some rounds after its publication, and each rank's newest allocator evidence.
class RoundShelf {
 public:
  // Returns the round to keep; null if no rank trained in it.
  std::shared_ptr<const LiveRound> round_of(const StepRecord& record);

 private:
  static constexpr std::size_t kKept = 4;

  void note_allocator(const RankSignal& report);
  Fragment allocator_of(RankId rank) const;

  std::vector<std::shared_ptr<const Plan>> plans_;  // oldest first
  std::vector<Fragment> allocators_;                // by rank, up to the highest rank with evidence
};

// Returns the row of `report`, with the fields that a report has. Counts no blocks if `plan` is
// null.
StepRow row_of(const RankSignal& report, const Plan* plan, UnixTime now);

// LiveFacts has the facts of the job that rounds lack.
struct LiveFacts {
  std::vector<Reason> decisions;     // as diagnosis::keep_newest() leaves them
  std::vector<NodeId> node_of_rank;  // as in JobFacts
  diagnosis::BudgetOptions options;  // FLOPs of a rank's step and its peak
};

// Returns the record that the run directory and the journal hold of these rounds. Leaves out ranks
// with less than half as many rows as the rank with most; `gaps` names such ranks.
diagnosis::RunRecord record_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                               const LiveFacts& facts);

// FindingsView has the findings of our own rules for a window.
struct FindingsView {
  std::vector<diagnosis::Finding> findings;  // most costly first
  std::size_t ranks = 0;
  std::size_t steps = 0;  // analysed, without warm-up
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  double wall_seconds = 0;  // wall time in these steps
  UnixTime time{};          // time of the newest round; 0 = no analysis yet
  double look_seconds = 0;  // duration of the analysis
};

// Returns the findings of `cox analyze` for these rounds.
FindingsView findings_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                         const LiveFacts& facts);

}  // namespace cox::metrics
