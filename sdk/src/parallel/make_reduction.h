// make_reduction: the way of averaging that a job's settings ask for, with its layout and its
// exchange: ExactReduction in reproducible mode, else LocalReduction in a job of one rank and
// OverlappedReduction in any other. For the reducer and for ManualParallel. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sdk/src/parallel/bucket_tuning.h"
#include "sdk/src/parallel/exact_sum.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {

// Collective. `parameters` must outlive it; `needed`: one a parameter, equal on all ranks, false
// for those that never get a gradient; `bins`: reproducible mode, one a parameter to start from.
// Throws cox::Error.
std::unique_ptr<GradientReduction> make_reduction(SessionState& state,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  const std::vector<ExactBin>& bins = {});

}  // namespace cox::detail
