#include "sdk/src/parallel/held_gradients.h"

namespace cox::detail {

GradientHolding held_gradients(SessionState& state, const GradientReduction& reduction,
                               const std::vector<at::Tensor>& parameters,
                               MicroBatches micro_batches) {
  // Reproducible mode adds every micro-batch up in its buckets, but keeps the averages.
  const bool keeps_sums =
      micro_batches == MicroBatches::several || state.config().reduction.reproducible;
  const bool sends_late = state.numbers().samples_gradients() || state.precision().may_scale();
  GradientHolding holding;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].requires_grad()) continue;
    if (keeps_sums) holding.resident_bytes += static_cast<std::int64_t>(parameters[p].nbytes());
    const bool moves = !sends_late && reduction.moves_when_ready(p);
    if (keeps_sums || moves) holding.released.push_back(parameters[p]);
  }
  return holding;
}

}  // namespace cox::detail
