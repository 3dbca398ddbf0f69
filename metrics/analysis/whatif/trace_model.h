// Builds the JobModel of a pipeline- and data-parallel job from its trace: dependencies, groups
// that wait for each other, and own times without waiting. docs/what-if.md has the rules. Pure; any
// thread.
#pragma once

#include "coordinator/core/status.h"
#include "metrics/analysis/whatif/job_model.h"
#include "metrics/records/trace.h"

namespace cox::diagnosis {

// Builds the graph once, from data-parallel rank 0 of the first step: all steps and ranks have the
// same operations. Supports any number of stages and data-parallel ranks, several model chunks a
// stage (interleaved), and gradients reduced at the end or during backward. Leaves out kinds that
// the trace lacks.
//
// Adds missing ranks and kinds, and clocks that disagree, to the `gaps` of the trace. Sets `doubt`,
// so that no rank is named, if clock faults affect one operation in a hundred, or if only one side
// of a wait was recorded. invalid_argument: sends and receives that do not match, and operations in
// a circle.
Result<JobModel> model_of(const Trace& trace);

}  // namespace cox::diagnosis
