// The topic Operators: the FLOPs of a step, the ranks' rate and its part of the devices' peak
// (MFU), the blocks by time and FLOPs, and rank 0's operators. One view is an OperatorsView,
// refreshed with the table of ranks. The other is rank 0's OperatorTable, set by the table's
// sampler. Plain values; pure functions, linear in the number of ranks.
#pragma once

#include <limits>
#include <optional>

#include "coordinator/core/step_signals.h"
#include "metrics/topic.h"

namespace cox::metrics {

// OperatorsView has the FLOPs of the model, forward and backward (operator_flops.h), over the time
// of steps. The time between steps does not count.
struct OperatorsView {
  double step_flops = 0;        // of all ranks with known FLOPs; 0 = none
  double flops_per_second = 0;  // sum of the ranks' rates
  // The rate of a rank divided by the peak, over the ranks with known FLOPs. NaN if no rank's FLOPs
  // or no peak is known.
  double mfu_ratio = std::numeric_limits<double>::quiet_NaN();
};

// Returns the view after `signals`; nullopt if no rank knows its FLOPs or no rank worked.
// `peak_flops_per_device`: 0 = not given.
std::optional<OperatorsView> operators_view(const StepSignals& signals,
                                            double peak_flops_per_device);

Topic operators_topic();

}  // namespace cox::metrics
