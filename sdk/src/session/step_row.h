// From a step's report to what leaves the rank: its signal for the coordinator and its row in the
// run directory. Pure, but for run_info(), which looks at the machine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/evidence.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/signal.h"
#include "metrics/run_format.h"
#include "metrics/step_row.h"
#include "sdk/src/precision/block_health.h"
#include "sdk/src/session/memory_probe.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

// Everything that the report knows; ids, memory and plan numbers are the session's to fill in.
RankSignal signal_from(const StepReport& report);

// The same signal as far as statistics of times are concerned: none (warm-up steps).
RankSignal without_times(RankSignal signal);

// What a row says of number formats.
struct NumbersOfStep {
  float loss_scale = 0;  // 0 = no scaler at work
  std::span<const BlockEvidence> evidence{};
  HealthVerdict verdict{};
  std::string blamed;  // name of the block; empty = outside of all
};

// What a row says beside the report. References are used during the call only.
struct RowContext {
  RankId rank{};
  RoundId round{};
  const Plan& plan;  // in force
  const MemoryReading& memory;
  UnixTime now{};
  std::int64_t predicted_peak_bytes = 0;  // under that plan; 0 = not known
  const NumbersOfStep& numbers;
};
metrics::StepRow row_from(const StepReport& report, const RowContext& context);

struct RunPlace {
  std::string program;
  RankId rank{};
  std::int32_t world_size = 1;
};
// Provenance of this rank's run directory.
// `environment`: entries NAME=VALUE, of which those are told that steer threads and transport.
metrics::RunInfo run_info(const Config& config, const RunPlace& place, UnixTime now,
                          const std::vector<std::string>& environment);

}  // namespace cox::detail
