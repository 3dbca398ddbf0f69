// Gradient clipping by the global norm, in one pass over the gradients that reads the device once.
//
//   cox::clip_by_global_norm(model->parameters(), 1.0);
//   cox::clip_by_global_norm(model->parameters(), 1.0, {.known_norm = outcome.gradient_norm});
//
// REQUIRES: scaled gradients were unscaled before (LossScaler::unscale). Thread rule: the training
// thread. Communicates only if `combine` does.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>

namespace cox {

// CombineSquares sums squares over ranks, for gradients that are spread over ranks. The function
// gets the sum of this rank's squares and returns the sum over all ranks, with the same bits on
// each rank. REQUIRES: a gradient of which several ranks hold a copy enters once.
using CombineSquares = std::function<double(double local_squares)>;

struct ClipOptions {
  // The norm, if the caller knows it (ReductionOutcome::gradient_norm). No pass is made then.
  std::optional<double> known_norm{};
  CombineSquares combine{};  // not called when the norm is known
};

// Multiplies all gradients by max_norm / norm if the L2 norm over all gradients is above max_norm.
// Returns the norm before clipping. Squares are summed in double; fp32 on the CPU gives the same
// bits in every run and with any number of threads. A parameter without a gradient is skipped, and
// one that is listed twice counts once. A norm that is not finite is returned and leaves the
// gradients unchanged: skip the update. Throws cox::Error unless max_norm > 0 (infinity only
// measures), and for a known norm below 0.
double clip_by_global_norm(std::span<const at::Tensor> parameters, double max_norm,
                           const ClipOptions& options = {});

}  // namespace cox
