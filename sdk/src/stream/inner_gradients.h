// Backward passes as calls of operators, so that a recorded step can repeat them.
//
// Shows an inner backward pass to the operator stream. An inner pass gives gradients with a history
// of their own (torch::autograd::grad with create_graph), so it belongs to a forward pass: a
// penalty on gradients, the derivatives of a differential equation. The stream shows the pass as
// one call of the operator coxswain::gradients, so that a recorded step can repeat it. The engine
// calls show_gradients() (saved_tensors.cc) on the thread of the pass.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <vector>

#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

// InnerPass is one pass from `roots`, with the roots' gradients, to `ends`.
struct InnerPass {
  const torch::autograd::edge_list& roots;
  const torch::autograd::variable_list& gradients;
  const torch::autograd::edge_list& ends;
};

// Calls `run` and returns its result. Shows the pass as a call if a listener wants calls.
torch::autograd::variable_list show_gradients(
    const InnerPass& pass, const std::function<torch::autograd::variable_list()>& run);

// Returns whether the operator is coxswain::gradients. Only a run that rebuilds the graph may call
// that operator.
bool is_inner_gradients(const c10::OperatorHandle& handle);

// Returns the operator coxswain::backward, which runs a backward pass from a scalar that adds to
// gradients, and the operator's arguments for `pass`. REQUIRES: `pass` has one root.
const c10::OperatorHandle& backward_operator();
std::vector<c10::IValue> backward_arguments(const BackwardPass& pass);

}  // namespace cox::detail
