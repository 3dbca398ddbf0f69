// From a trace of a pipeline- and data-parallel job to its JobModel: what depends on what, who
// waits for whom, and what each operation took without its waiting. docs/what-if.md has the rules.
// Pure; any thread.
#pragma once

#include "coordinator/core/status.h"
#include "metrics/analysis/whatif/job_model.h"
#include "metrics/records/trace.h"

namespace cox::diagnosis {

// The graph is built once, from data-parallel rank 0 of the first step: all steps and ranks have
// the same operations. Layouts: any number of stages and data-parallel ranks, several model chunks
// a stage (interleaved), gradients reduced at the end or during backward; kinds that the trace does
// not have are left out of the graph.
//
// Besides those of the trace, `gaps` says which ranks and kinds are missing and where clocks
// disagree. There is a `doubt`, so that nobody is named, where that touches one operation in a
// hundred, and where only one side of those that wait for each other was recorded.
// invalid_argument: sends and receives that do not match, and operations in a circle.
Result<JobModel> model_of(const Trace& trace);

}  // namespace cox::diagnosis
