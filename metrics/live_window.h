// The newest steps of a running job as its run directory has them, so that what `cox analyze` says
// afterwards can be said while it runs. A report of a rank becomes the row that the rank keeps of
// that step, and rows become a RunRecord through the text of steps.jsonl itself.
//
//   StepRecord -> LiveRound -> row_of() -> step_line() -> io::StepLines -> RunRecord
//
// What differs: a report that covers several steps is one row with their mean, which counts in what
// findings cost as often as there are steps in it, and `timestamp` is rank 0's. Plain values; the
// functions are pure.
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

// LiveRound is what is kept of a round.
struct LiveRound {
  UnixTime now{};
  // Reports of the ranks that trained in the round, in ascending order. Their fragments are the
  // newest evidence of the ranks' allocators, of kind `none` where a rank has sent none.
  std::vector<RankSignal> reports;
  std::shared_ptr<const Plan> plan;  // that they applied; null = not known
};
using LiveRounds = std::vector<std::shared_ptr<const LiveRound>>;  // oldest first

// Steps that a window holds at most, and for many ranks the rows: 1,024 ranks have 64 steps. A
// window takes about 270 bytes a row.
inline constexpr std::size_t kWindowSteps = 512;
inline constexpr std::size_t kWindowRows = 65'536;

// Returns how many rounds a window of so many ranks holds. Never less than 32.
std::size_t window_rounds(std::size_t ranks);

// RoundShelf keeps what rounds need of earlier ones: the newest plans, since ranks apply one some
// rounds after it was published, and each rank's newest evidence of its allocator.
class RoundShelf {
 public:
  // Returns what is kept of the round; null where no rank trained in it.
  std::shared_ptr<const LiveRound> round_of(const StepRecord& record);

 private:
  static constexpr std::size_t kKept = 4;

  void note_allocator(const RankSignal& report);
  Fragment allocator_of(RankId rank) const;

  std::vector<std::shared_ptr<const Plan>> plans_;  // oldest first
  std::vector<Fragment> allocators_;                // by rank, as far as one has told
};

// Returns the row of `report`, as far as a report knows it. `plan` null: no blocks are counted.
StepRow row_of(const RankSignal& report, const Plan* plan, UnixTime now);

// LiveFacts is what is known of the job beside its rounds.
struct LiveFacts {
  std::vector<Reason> decisions;     // as diagnosis::keep_newest() leaves them
  std::vector<NodeId> node_of_rank;  // as in JobFacts
  diagnosis::BudgetOptions options;  // FLOPs of a rank's step and its peak
};

// Returns what the run directory and the journal hold of these rounds. Ranks with less than half of
// the rows of the rank that has most are left out, which `gaps` tells.
diagnosis::RunRecord record_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                               const LiveFacts& facts);

// FindingsView is what our own rules say of a window.
struct FindingsView {
  std::vector<diagnosis::Finding> findings;  // what costs most first
  std::size_t ranks = 0;
  std::size_t steps = 0;  // looked at; warm-up is not
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  double wall_seconds = 0;  // of these steps
  UnixTime time{};          // of the newest round; 0 = nobody has looked yet
  double look_seconds = 0;  // what the look took
};

// Returns what `cox analyze` says of these rounds.
FindingsView findings_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                         const LiveFacts& facts);

}  // namespace cox::metrics
