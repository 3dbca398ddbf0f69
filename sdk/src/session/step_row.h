// From a step's report to what leaves the rank: its signal for the coordinator and its row in the
// run directory. Pure.
#pragma once

#include "coordinator/core/config.h"
#include "coordinator/core/signal.h"
#include "metrics/run_store.h"
#include "sdk/src/session/memory_probe.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

// Everything that the report knows; ids, memory and plan numbers are the session's to fill in.
RankSignal signal_from(const StepReport& report);

metrics::StepRow row_from(const StepReport& report, RoundId round, std::uint64_t plan,
                          const MemoryReading& memory, UnixTime now);

}  // namespace cox::detail
