// From a step's report to what leaves the rank: its signal for the coordinator and its row in the
// run directory. Pure, but for run_info(), which looks at the machine.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/signal.h"
#include "metrics/run_format.h"
#include "metrics/step_row.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

// The signal as far as the report knows it; ids are the session's to fill in, actuators add theirs.
RankSignal signal_from(const StepReport& report);

// The same signal as far as statistics of times are concerned: none (warm-up steps).
RankSignal without_times(RankSignal signal);

// The row of a step as far as the report knows it; actuators add theirs.
metrics::StepRow row_from(const StepReport& report, RoundId round, UnixTime now);

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
