// Turns the phases of a data-parallel run into a JobModel, so that the questions of what_if.h can
// be asked of a run directory too.
//
//   run directory (records/run_reader.h) -> RunRecord -> model_of() -> JobModel -> what_if()
//
// A run directory has durations and no starts, so the model is simple: in each step a rank does its
// own work, phase by phase (data, forward, backward, compute, optimizer, other), then all ranks
// reduce gradients together, which ends for all at once. Time booked on communication contains
// waiting for the last rank. What a rank books beyond that wait is its transfer, and nobody's
// transfer is shorter than the least that any rank booked in that step, for that rank waited least:
//
//   wait     = longest own work of all ranks - own work of this rank
//   transfer = max(least communication of all ranks, communication - wait)
//
// Work behind the reduction delays the next step, not this one; it is counted in its own step,
// which comes to the same over a run. Reductions that overlap with backward count as far as they
// delay it. Shares are not known here: a rank with twice the samples counts as slow. Pure; any
// thread.
#pragma once

#include <cstddef>

#include "coordinator/core/status.h"
#include "metrics/analysis/whatif/job_model.h"
#include "metrics/records/run_record.h"

namespace cox::diagnosis {

// Counts the steps of all ranks together, so that the model takes less than 256 MiB.
inline constexpr std::size_t kMostPhaseSteps = std::size_t{3} << 18;

// Takes the steps in which all ranks have worked, the newest of a long run; a step that is there
// several times counts as it was last (steps repeat after a rollback). Steps that are left out are
// told in `gaps`. Workers are the ranks, operations the phases that somebody spent time on. Errors
// (invalid_argument): no ranks, a rank without phases, no step in which all ranks have worked;
// seconds that are negative or too large.
Result<JobModel> model_of(const RunRecord& run, std::size_t most_steps = kMostPhaseSteps);

}  // namespace cox::diagnosis
