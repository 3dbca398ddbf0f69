// A backward pass whose gradients have a history of their own is part of a forward pass: a penalty
// on gradients, the derivatives of a differential equation (torch::autograd::grad with
// create_graph). The stream shows such a pass as one call of the operator coxswain::gradients, so
// that a recorded step can make it again. The engine calls show_gradients() (saved_tensors.cc), on
// the thread of the pass.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

// One pass: from `roots`, with these gradients of theirs, to `ends`.
struct InnerPass {
  const torch::autograd::edge_list& roots;
  const torch::autograd::variable_list& gradients;
  const torch::autograd::edge_list& ends;
};

// Runs the pass by `run` and returns what that returns, shown where a listener wants calls.
torch::autograd::variable_list show_gradients(
    const InnerPass& pass, const std::function<torch::autograd::variable_list()>& run);

// Returns whether this is the operator of such a pass. Only a run that makes the graph anew may
// call it.
bool is_inner_gradients(const c10::OperatorHandle& handle);

}  // namespace cox::detail
