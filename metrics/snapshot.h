// Snapshot is everything that telemetry shows, as of one round. It is immutable once published, so
// every page and scrape is consistent in itself. Each topic (metrics/topics) has its part; parts
// that change seldom are shared between snapshots. TelemetryState writes it; the exposition, the
// API and the status page read it on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/record.h"
#include "metrics/live_window.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/heat_map.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/operators.h"
#include "metrics/topics/parallel.h"
#include "metrics/topics/plan.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {

enum class JobState : std::uint8_t { waiting = 0, training = 1, finished = 2 };

// BuildInfo is the build that runs. The program passes it in, so that nothing here depends on the
// build.
struct BuildInfo {
  std::string version;   // "0.1.0"
  std::string revision;  // short commit, or empty
};

struct Snapshot {
  BuildInfo build;
  JobState state = JobState::waiting;
  UnixTime started{};           // by rank 0's clock
  std::uint64_t last_step = 0;  // with which the job ends by itself; 0 = not known
  UnixTime last_round_time{};   // by rank 0's clock, when it judged the round; steps ended earlier
  StepSummary summary;
  std::shared_ptr<const JobFacts> job;  // never null
  std::shared_ptr<const Plan> plan;     // never null; the newest one

  std::shared_ptr<const FindingsView> findings = std::make_shared<const FindingsView>();
  ProgressView progress;
  RanksView ranks;
  HeatMap heat;
  StallView stall;
  PlanView plan_view;
  ParallelView parallel;
  std::uint64_t repeated_rounds = 0;         // in which a step was done again
  std::shared_ptr<const MemoryView> memory;  // null where memory is not planned
  HeldBytes held;
  MemoryHeadroom headroom;  // of the newest round
  OperatorsView operators;
  std::shared_ptr<const NumericsView> numerics;  // never null
  DecisionsView decisions;
  ControlCounters control{};
};

}  // namespace cox::metrics
