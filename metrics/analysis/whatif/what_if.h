// what_if() computes how much faster a job would be without stragglers, and who costs the time.
// Each figure comes from simulations of the same steps, in which some operations take their real
// time and the others their ideal time. The ideal time is the mean over all ranks, stages and steps
// for work, and the median for communication.
//
//   JobModel -> what_if() -> WhatIf
//
// The names S, S_t, S_w, M_W, M_S are those of the published analysis; docs/what-if.md repeats
// their definitions. Runs one simulation for each type and stage, and a few more. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metrics/analysis/whatif/job_model.h"

namespace cox::diagnosis {

inline constexpr double kLeastLoss = 0.01;  // lost part of S below which no rank is named

// The cost of some operations: the job without their delays, and an ideal job with them.
struct Blame {
  double removed_seconds = 0;  // in a mean step
  double added_seconds = 0;
  // Fractions of the job's loss, not bounded by 0 and 1. Absent if the job loses nothing.
  std::optional<double> removed_share;
  std::optional<double> added_share;
};

struct LabelSlowdown {
  std::string label;
  double slowdown = 1;           // S_t
  std::vector<double> of_steps;  // [step]
};

// Workers that each alone cost at least half of the job's loss. `ranks` is empty if no worker
// stands out: more than half of the workers qualify, or removing them wins back less than half.
// Also empty if the model has a doubt.
struct Culprits {
  std::vector<std::int32_t> ranks;  // ascending
  Blame blame;
};

struct StepTimes {
  std::int64_t step = 0;
  double traced_seconds = 0;
  double actual_seconds = 0;  // simulated with the real own times
  double ideal_seconds = 0;
};

struct TypeSeconds {
  std::string type;
  double ideal_seconds = 0;
};

struct WhatIf {
  double traced_seconds = 0;  // in a mean step, like the next two
  double actual_seconds = 0;
  double ideal_seconds = 0;
  double slowdown = 1;                    // S
  std::vector<StepTimes> steps;           // ascending
  std::vector<LabelSlowdown> labels;      // the largest first
  std::vector<double> of_dp_ranks;        // [dp_rank]: S_dp
  std::vector<double> of_stages;          // [stage]: S_stage
  std::vector<double> of_workers;         // [dp_rank][stage]: S_w
  std::vector<double> work_seconds;       // [dp_rank][stage][label]: own times of a mean step
  std::vector<std::int32_t> worst_ranks;  // numbers in the job; 3 % of the ranks, at least one
  Blame worst;                            // removed_share is M_W
  Blame last_stage;                       // removed_share is M_S
  Culprits culprits;                      // not published: the ranks to name
  std::optional<double> pipeline_free;    // speed-up; absent without such communication
  std::optional<double> data_parallel_free;
  std::vector<TypeSeconds> types;

  double simulation_gap() const { return traced_seconds / actual_seconds; }
};

// Returns invalid_argument if the operations take no time at all.
Result<WhatIf> what_if(const JobModel& model);

}  // namespace cox::diagnosis
