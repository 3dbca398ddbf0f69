#include "sdk/src/stream/inner_gradients.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/torch.h>

#include <utility>

namespace cox::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

variable_list gradients(at::TensorList outputs, at::TensorList inputs, at::TensorList of_outputs) {
  return torch::autograd::grad(outputs.vec(), inputs.vec(), of_outputs.vec(),
                               /*retain_graph=*/true, /*create_graph=*/true,
                               /*allow_unused=*/true);
}

void backward(const at::Tensor& root, bool keeps_graph, bool creates_graph) {
  root.backward({}, keeps_graph, creates_graph);
}

// Returns a leaf itself. The engine identifies any other tensor by its place in the graph, so an
// empty tensor with the same history represents it.
at::Tensor tensor_at(const Edge& edge) {
  if (!edge.is_valid()) return {};
  if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()))
    return leaf->variable;
  at::Tensor stand_in = at::empty({0});
  // torch::autograd::grad() has such a node for a leaf that is in no graph.
  const auto* node = dynamic_cast<torch::autograd::Identity*>(edge.function.get());
  if (node != nullptr && node->num_outputs() == 0) return stand_in.requires_grad_(true);
  torch::autograd::impl::set_gradient_edge(stand_in, edge);
  return stand_in;
}

variable_list tensors_at(const edge_list& edges) {
  variable_list tensors;
  for (const Edge& edge : edges) tensors.push_back(tensor_at(edge));
  return tensors;
}

const c10::OperatorHandle& inner_gradients() {
  static const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("coxswain::gradients", "");
  return handle;
}

}  // namespace

bool is_inner_gradients(const c10::OperatorHandle& handle) {
  return handle == inner_gradients();
}

const c10::OperatorHandle& backward_operator() {
  static const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("coxswain::backward", "");
  return handle;
}

std::vector<c10::IValue> backward_arguments(const BackwardPass& pass) {
  return {tensor_at(pass.roots.front()), pass.keeps_graph, pass.creates_graph};
}

variable_list show_gradients(const InnerPass& pass, const std::function<variable_list()>& run) {
  const auto arguments = [&] {
    return std::vector<c10::IValue>{tensors_at(pass.roots), tensors_at(pass.ends), pass.gradients};
  };
  variable_list found;
  show_call(inner_gradients(), arguments, [&] {
    found = run();
    return std::vector<c10::IValue>{found};
  });
  return found;
}

}  // namespace cox::detail

TORCH_LIBRARY_FRAGMENT(coxswain, library) {
  library.def("gradients(Tensor[] outputs, Tensor[] inputs, Tensor[] of_outputs) -> Tensor[]",
              &cox::detail::gradients);
  library.def("backward(Tensor root, bool keeps_graph, bool creates_graph) -> ()",
              &cox::detail::backward);
}
