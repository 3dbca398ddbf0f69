#include "coxswain/wrap.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/rnn.h>

#include "sdk/src/blocks/marker.h"

namespace cox {
namespace {

using torch::nn::Module;

template <class... Impls>
bool is_any_of(const Module& module) {
  return (... || (dynamic_cast<const Impls*>(&module) != nullptr));
}

// Returns why the element cannot be a block; empty when it can.
std::string reason_against(const torch::nn::AnyModule& any) {
  if (any.is_empty()) return "it is empty";
  const Module& module = *any.ptr();
  if (detail::find_marker(module)) return "it is a block already";
  if (is_any_of<torch::nn::LSTMImpl, torch::nn::GRUImpl, torch::nn::RNNImpl,
                torch::nn::LSTMCellImpl>(module)) {
    return "a recurrent layer returns a tuple, not a tensor";
  }
  if (is_any_of<torch::nn::MultiheadAttentionImpl>(module)) {
    return "attention takes three tensors and returns a tuple";
  }
  return {};
}

void unwrap(torch::nn::SequentialImpl& sequential) {
  for (torch::nn::AnyModule& any : sequential) {
    detail::SequentialElement* element = detail::wrapped_element(any);
    if (element == nullptr) continue;
    element->state()->release();
    torch::nn::AnyModule original = element->original();
    any = std::move(original);
  }
}

}  // namespace

std::vector<WrapNote> wrap(torch::nn::Sequential& sequential) {
  std::vector<WrapNote> notes;
  std::size_t index = 0;
  for (torch::nn::AnyModule& any : *sequential) {
    const std::size_t here = index++;
    if (detail::wrapped_element(any) != nullptr) continue;
    if (std::string why = reason_against(any); !why.empty()) {
      notes.push_back({here, std::move(why)});
      continue;
    }
    any = torch::nn::AnyModule(std::make_shared<detail::SequentialElement>(std::move(any)));
  }
  return notes;
}

void detach(Module& model) {
  detail::for_each_module(model, [](const std::string&, Module& module) {
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module)) unwrap(*sequential);
    if (const auto state = detail::find_marker(module)) state->release();
    detail::remove_marker(module);
  });
}

}  // namespace cox
