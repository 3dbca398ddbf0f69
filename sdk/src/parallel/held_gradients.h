// What gradients take of a rank's memory while a step runs, for the plan of its activations. A
// prediction must hold in every step, so steps that keep gradients longer than others count. Looks
// only; the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {

// Of the steps to come, under the formats in force and those that may follow.
GradientHolding held_gradients(SessionState& state, const GradientReduction& reduction,
                               const std::vector<at::Tensor>& parameters,
                               MicroBatches micro_batches);

}  // namespace cox::detail
