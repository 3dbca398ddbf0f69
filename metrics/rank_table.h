// Every rank's newest report, compact, for /api/v1/ranks and the table on the status page. Pure;
// linear in the number of ranks.
#pragma once

#include <memory>

#include "coordinator/core/step_signals.h"
#include "coordinator/core/summary.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

std::shared_ptr<const RankTable> rank_table(const StepSignals& signals, const StepSummary& summary);

}  // namespace cox::metrics
