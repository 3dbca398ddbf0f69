// SequentialElement: what cox::wrap puts in the place of an element of a torch::nn::Sequential. It
// keeps the original AnyModule and calls it as a block. A torch container reaches it only through
// AnyModuleHolder, specialised here, so that ptr(), operator[] and clone() answer for the original.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <memory>
#include <vector>

#include "sdk/src/blocks/block_state.h"

namespace cox::detail {

class SequentialElement final : public torch::nn::Module {
 public:
  explicit SequentialElement(torch::nn::AnyModule original)
      : original_(std::move(original)), state_(std::make_shared<BlockState>(original_.ptr())) {}

  at::Tensor forward(at::Tensor input) { return original_.forward(std::move(input)); }
  // A call with one tensor that returns one is observed; any other passes through.
  torch::nn::AnyValue call(std::vector<torch::nn::AnyValue>&& arguments);

  const torch::nn::AnyModule& original() const { return original_; }
  const std::shared_ptr<BlockState>& state() const { return state_; }

 private:
  torch::nn::AnyModule original_;
  std::shared_ptr<BlockState> state_;
};

// The element behind `any`, or nullptr when it is not wrapped.
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
