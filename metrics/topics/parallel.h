// The topic Data parallel: how the ranks shared the newest round in which somebody worked, who
// computed how many samples, and what reducing gradients cost. Its part of the snapshot is a
// ParallelView, refreshed with the table of ranks; its size does not grow with their number. Plain
// values; pure functions, linear in the number of ranks.
#pragma once

#include <cstdint>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "metrics/topic.h"

namespace cox::metrics {

struct ParallelView {
  double step_samples = 0;          // of all ranks that reported, in a step
  std::uint64_t micro_batches = 0;  // of the rank that had fewest, more than none; 0 = not known
  Spread rank_samples;              // of a rank in a step
  Spread reduction_seconds;         // of a step's buckets, from launch to result, summed up
  Spread exposed_seconds;           // the part of it that nothing hid
};

// SharedUpdates counts the updates of parameters that the ranks of a node hold once
// (shard.mode=state), as rank 0 sees them, since the start. The session sets it.
struct SharedUpdates {
  std::uint64_t updates = 0;
  std::uint64_t writes = 0;  // numbered: to parameters, and reads of whole states
  std::uint64_t waits = 0;   // for another rank
  double wait_seconds = 0;
  std::uint64_t new_sequences = 0;  // updates in an order of writes that had not occurred before
};

// Returns the view after `signals`: `before` where nobody worked in them.
ParallelView parallel_view(const JobFacts& job, const StepSignals& signals,
                           const ParallelView& before);

// Returns the part of the reduction's time that overlapped with the backward pass, 0 .. 1; NaN when
// nothing was reduced.
double hidden_ratio(double reduction_seconds, double exposed_seconds);
double hidden_ratio(const ParallelView& view);  // of the medians

// Returns the samples of a step under `plan`; 0 where the plan leaves that to the loop.
std::uint64_t planned_samples(const Plan& plan, const JobFacts& job);

Topic parallel_topic();

}  // namespace cox::metrics
