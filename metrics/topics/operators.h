// The topic Operators: the FLOPs of a step, how many a second the ranks reach and what part of
// their devices' peak that is (MFU), the blocks by time and FLOPs, and rank 0's operators. Its
// views are an OperatorsView, refreshed with the table of ranks, and rank 0's OperatorTable, which
// whoever samples it sets. Plain values; pure functions, linear in the number of ranks.
#pragma once

#include <limits>
#include <optional>

#include "coordinator/core/step_signals.h"
#include "metrics/topic.h"

namespace cox::metrics {

// FLOPs are those of the model, forward and backward (operator_flops.h); times are those of steps,
// without what lies between them.
struct OperatorsView {
  double step_flops = 0;        // of all ranks that know theirs; 0 = none does
  double flops_per_second = 0;  // the ranks' rates added up
  // The rate of a rank divided by the peak, over the ranks that know their FLOPs; NaN without
  // either.
  double mfu_ratio = std::numeric_limits<double>::quiet_NaN();
};

// Returns the view after `signals`; nothing where no rank knows its FLOPs or nobody worked.
// `peak_flops_per_device`: 0 = not given.
std::optional<OperatorsView> operators_view(const StepSignals& signals,
                                            double peak_flops_per_device);

Topic operators_topic();

}  // namespace cox::metrics
