// The marks by which a block is found in a model. A module that cox::Block names has a BlockMarker:
// a child module without parameters or buffers that is left out of archives and carries the block's
// state. An element that cox::wrap took over is a SequentialElement in the place of the original
// one, which it keeps and calls as a block. The model owns both. Used by the thread that trains.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sdk/src/blocks/block_state.h"

namespace cox::detail {

// Visits a model's modules in the order of their registration, parents first, each module once.
// That order gives blocks their numbers and is the same on every rank that built the same model.
// `path` joins the names of the children on the way by dots; it is empty for the model itself.
using ModuleVisit = std::function<void(const std::string& path, torch::nn::Module& module)>;
void for_each_module(torch::nn::Module& model, const ModuleVisit& visit);

// Returns the state behind the module's own marker, or null.
std::shared_ptr<BlockState> find_marker(const torch::nn::Module& module);
void remove_marker(torch::nn::Module& module);

// A torch container reaches an element only through AnyModuleHolder, which is specialised below so
// that ptr(), operator[] and clone() answer for the original.
class SequentialElement final : public torch::nn::Module {
 public:
  explicit SequentialElement(torch::nn::AnyModule original)
      : original_(std::move(original)), state_(std::make_shared<BlockState>(original_.ptr())) {}

  at::Tensor forward(at::Tensor input) { return original_.forward(std::move(input)); }
  // Observes a call with one tensor that returns one tensor; any other passes through.
  torch::nn::AnyValue call(std::vector<torch::nn::AnyValue>&& arguments);

  const torch::nn::AnyModule& original() const { return original_; }
  const std::shared_ptr<BlockState>& state() const { return state_; }

 private:
  torch::nn::AnyModule original_;
  std::shared_ptr<BlockState> state_;
};

// Returns the element behind `any`, or null when it is not wrapped.
SequentialElement* wrapped_element(torch::nn::AnyModule& any);

}  // namespace cox::detail

template <>
struct torch::nn::AnyModuleHolder<cox::detail::SequentialElement, at::Tensor>
    : public torch::nn::AnyModulePlaceholder {
  explicit AnyModuleHolder(std::shared_ptr<cox::detail::SequentialElement>&& element)
      : AnyModulePlaceholder(typeid(cox::detail::SequentialElement)), module(std::move(element)) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    return module->call(std::move(arguments));
  }
  std::shared_ptr<Module> ptr() override { return module->original().ptr(); }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<AnyModuleHolder>(*this);
  }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<Device> device) const override;

  std::shared_ptr<cox::detail::SequentialElement> module;  // AnyModule::get() reads it by this name
};
