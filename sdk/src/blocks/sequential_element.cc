#include "sdk/src/blocks/sequential_element.h"

#include <array>
#include <utility>

#include "coxswain/detail/attended_call.h"

namespace cox::detail {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyValue;
using Arguments = std::vector<AnyValue>;

template <std::size_t... I>
AnyValue call_with(AnyModule& module, Arguments& arguments, std::index_sequence<I...>) {
  return module.any_forward(std::move(arguments[I])...);
}

constexpr std::size_t kMaxArguments = 8;

// AnyModule takes its arguments as a pack; this is the way back from a vector.
template <std::size_t Count = 0>
AnyValue call_with(AnyModule& module, Arguments& arguments) {
  if (arguments.size() == Count) {
    return call_with(module, arguments, std::make_index_sequence<Count>());
  }
  if constexpr (Count < kMaxArguments) {
    return call_with<Count + 1>(module, arguments);
  } else {
    TORCH_CHECK(false, "expected at most ", kMaxArguments,
                " arguments for an element of a wrapped "
                "Sequential, found ",
                arguments.size());
  }
}

// A copy of an AnyModule shares its module.
std::unique_ptr<Rerun> keep_call(const AnyModule& module, const at::Tensor& tensor) {
  const auto again = [held = AnyModule(module)](const at::Tensor& kept) mutable {
    return held.any_forward(kept);
  };
  using Call = std::decay_t<decltype(again)>;
  return std::make_unique<KeptCall<Call, at::Tensor>>(again, true, tensor);
}

}  // namespace

AnyValue SequentialElement::call(Arguments&& arguments) {
  const at::Tensor* input = nullptr;
  if (state_->active && arguments.size() == 1) input = arguments[0].try_get<at::Tensor>();
  if (input == nullptr) return call_with(original_, arguments);

  const at::Tensor tensor = widened_for(state_, *input);
  AttendedCall call(state_);
  call.input(tensor);
  call.begin(call.runs_again() ? keep_call(original_, tensor) : nullptr);
  if (!tensor.is_same(*input)) arguments[0] = AnyValue(at::Tensor(tensor));
  AnyValue result = call_with(original_, arguments);
  call.end();
  if (const at::Tensor* output = result.try_get<at::Tensor>()) {
    result = AnyValue(call.output(*output));
    call.finish();
  } else {
    call.finish_unseen();
  }
  return result;
}

SequentialElement* wrapped_element(AnyModule& any) {
  if (any.is_empty() || any.type_info() != typeid(SequentialElement)) return nullptr;
  return &any.get<SequentialElement>();
}

}  // namespace cox::detail

namespace torch::nn {

std::unique_ptr<AnyModulePlaceholder> AnyModuleHolder<
    cox::detail::SequentialElement, at::Tensor>::clone_module(std::optional<Device> device) const {
  auto element = std::make_shared<cox::detail::SequentialElement>(module->original().clone(device));
  return std::make_unique<AnyModuleHolder>(std::move(element));
}

}  // namespace torch::nn
