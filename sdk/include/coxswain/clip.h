// Gradient clipping by the global norm, in one pass over the gradients that reads the device once.
//
//   cox::clip_by_global_norm(model->parameters(), 1.0);
//   cox::clip_by_global_norm(model->parameters(), 1.0, {.known_norm = outcome.gradient_norm});
//
// Scaled gradients are unscaled first (LossScaler::unscale). Training thread; communicates only if
// `combine` does.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>

namespace cox {

// CombineSquares sums squares over ranks, for gradients that are spread over them: it gets the sum
// of what this rank holds and returns the sum over all ranks, the same bits on each. REQUIRES: a
// gradient of which several ranks hold a copy enters once.
using CombineSquares = std::function<double(double local_squares)>;

struct ClipOptions {
  // The norm, when it is known already (ReductionOutcome::gradient_norm); no pass is made then.
  std::optional<double> known_norm{};
  CombineSquares combine{};  // not called when the norm is known
};

// Multiplies all gradients by max_norm / norm when the L2 norm over all of them is above max_norm,
// and returns the norm as it was before. Squares are summed in double; fp32 on the CPU gives the
// same bits in every run and with any number of threads. Parameters without a gradient are skipped,
// one that is listed twice counts once. A norm that is not finite is returned and the gradients are
// left as they are: skip the update. Throws cox::Error unless max_norm > 0 (infinity only
// measures), and for a known norm below 0.
double clip_by_global_norm(std::span<const at::Tensor> parameters, double max_norm,
                           const ClipOptions& options = {});

}  // namespace cox
