// StepRecord: the end of the flow, one round with its summary, decision and plan. The coordinator's
// thread hands each StepRecord to a StepSink (telemetry). A sink must return in microseconds and
// never blocks on readers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/decide/decide.h"

namespace cox {

// ControlCounters are counts of the control plane since the start, as rank 0 counts them.
struct ControlCounters {
  std::uint64_t rounds = 0;
  std::uint64_t plans_published = 0;
  std::uint64_t missing_reports = 0;
  std::uint64_t damaged_reports = 0;
  std::uint64_t stale_reports = 0;
  std::uint64_t duplicate_reports = 0;
  std::uint64_t full_plans_resent = 0;
  std::uint64_t signal_bytes = 0;
  std::uint64_t mask_bytes = 0;
  std::uint64_t journal_bytes = 0;
  std::uint64_t journal_errors = 0;
  double decide_seconds = 0;  // of this round
};

struct StepRecord {
  const StepSignals& signals;
  const Decision& decision;
  const Plan& plan;  // the newest published one
  const JobFacts& job;
  ControlCounters counters;
  // The memory budget of each rank in a step; 0 = unlimited. Empty if activation memory is not
  // planned.
  std::span<const std::int64_t> memory_budget_bytes{};
};

class StepSink {
 public:
  virtual ~StepSink() = default;
  // Records a round. References are valid during the call only.
  virtual void record(const StepRecord& record) = 0;
};

}  // namespace cox
