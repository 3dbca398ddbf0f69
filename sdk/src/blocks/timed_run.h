// A timed run is a step that is run by itself so that its blocks are timed, before the first step
// of a job. Reads of the clock wait for the blocks' device first: time is then where the work is.
// In the steps of a job the clock waits for nothing, so that the times of blocks on a device are
// those in which the host gives it their work. Training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {

// Called at every edge of a block, on the thread that passes it: autograd's in backward.
using SeeEdge = std::function<void(BlockId block, BlockEdge edge, Nanoseconds now)>;

// Runs `step` and returns the microseconds of every block, forward and backward, or the error of
// `step`. The run is reported to nobody else.
Result<std::vector<std::int64_t>> run_timed(VisitWatch& visits, const std::function<Status()>& step,
                                            const SeeEdge& see_edge = {});

}  // namespace cox::detail
