// A timed run runs one step alone, before a job's first step, to time its blocks. Clock readings
// wait for the blocks' device first, so the time is that of the work. In a job's steps the clock
// does not wait; times of blocks on a device are then those of the host's launches. Training
// thread.
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
// `step`. Reports to no other sink.
Result<std::vector<std::int64_t>> run_timed(VisitWatch& visits, const std::function<Status()>& step,
                                            const SeeEdge& see_edge = {});

}  // namespace cox::detail
