// Records the operator graph of a whole training step of a model as its user wrote it: the forward
// pass by a tape that measures, the backward pass as one operator for each recorded one that takes
// part in it.
//
// What is measured: operators of the forward pass, each the least of several passes; the backward
// pass as a whole, likewise. Its time is divided by the forward times, a product or convolution
// with a parameter counting twice. A backward operator reads what its operator saved and the
// gradients of what it made, and makes the gradients of what it read; a gradient has the bytes of
// the whole storage; a second gradient for a storage makes a new one from the first. Views are
// their base, and writes in place make new tensors.
#pragma once

#include "coordinator/planner/step_graph.h"
#include "tests/sdk/stream/models.h"

namespace stream_models {

// REQUIRES: the tape's engine is installed. `passes` >= 1 are measured.
cox::planner::StepGraph record_step(const ModelCase& model, int passes);

}  // namespace stream_models
