// Builds a JobModel from the phases of a data-parallel run, so that what_if() works on run
// directories, too. Pure; any thread.
//
//   run directory (records/run_reader.h) -> RunRecord -> model_of() -> JobModel -> what_if()
//
// In each step of the model, a rank does its own work phase by phase, then all ranks reduce
// gradients together and end at once. docs/what-if.md ("Run directories") explains how waiting and
// transfer are told apart; run_view.h has the formulas. Work after the reduction counts in its own
// step, which gives the same total over a run. Shares are unknown: a rank with twice the samples
// counts as slow.
#pragma once

#include <cstddef>

#include "coordinator/core/status.h"
#include "metrics/analysis/whatif/job_model.h"
#include "metrics/records/run_record.h"

namespace cox::diagnosis {

// Limits the steps of all ranks together, which keeps the model under 256 MiB.
inline constexpr std::size_t kMostPhaseSteps = std::size_t{3} << 18;

// Builds the model of the steps in which all ranks have worked, the newest of a long run. Workers
// are the ranks; operations are the phases with any time. A repeated step counts with its last
// record (steps repeat after a rollback). `gaps` reports steps left out.
//
// Errors (invalid_argument): no ranks; a rank without phases; no step in which all ranks have
// worked; negative or too large seconds.
Result<JobModel> model_of(const RunRecord& run, std::size_t most_steps = kMostPhaseSteps);

}  // namespace cox::diagnosis
