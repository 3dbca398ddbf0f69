// The topic Data parallel: the ranks' samples in the newest round in which some rank worked, and
// the cost of reducing gradients. The topic's view is a ParallelView, refreshed with the table of
// ranks. The view's size does not grow with the number of ranks. Plain values; pure functions,
// linear in the number of ranks.
#pragma once

#include <cstdint>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "metrics/topic.h"

namespace cox::metrics {

struct ParallelView {
  double step_samples = 0;          // in a step, over all ranks that reported
  std::uint64_t micro_batches = 0;  // the least of any rank with samples; 0 = no fixed size
  Spread rank_samples;              // of a rank in a step
  Spread reduction_seconds;         // of a step's buckets, from launch to result, summed up
  Spread exposed_seconds;           // the part that no computation hid
};

// SharedUpdates counts, since the start, rank 0's updates of parameters that the ranks of a node
// hold once (shard.mode=state). The session sets the view.
struct SharedUpdates {
  std::uint64_t updates = 0;
  std::uint64_t writes = 0;  // numbered writes to parameters, and reads of whole states
  std::uint64_t waits = 0;   // waits for another rank
  double wait_seconds = 0;
  std::uint64_t new_sequences = 0;  // updates in an order of writes that had not occurred before
};

// Returns the view after `signals`, or `before` if no rank worked in them.
ParallelView parallel_view(const JobFacts& job, const StepSignals& signals,
                           const ParallelView& before);

// Returns the part of the reduction's time that overlapped with the backward pass, 0 .. 1; NaN if
// no gradient was reduced.
double hidden_ratio(double reduction_seconds, double exposed_seconds);
double hidden_ratio(const ParallelView& view);  // of the medians

// Returns the samples of a step under `plan`; 0 if the plan leaves the number to the loop.
std::uint64_t planned_samples(const Plan& plan, const JobFacts& job);

Topic parallel_topic();

}  // namespace cox::metrics
