#include "sdk/src/blocks/marker.h"

#include <unordered_set>
#include <utility>

#include "coxswain/detail/attended_call.h"

namespace cox::detail {
namespace {

constexpr const char* kMarkerName = "coxswain_block";

class BlockMarker final : public torch::nn::Module {
 public:
  explicit BlockMarker(std::shared_ptr<BlockState> state)
      : torch::nn::Module(kMarkerName), state_(std::move(state)) {}
  bool is_serializable() const override { return false; }
  const std::shared_ptr<BlockState>& state() const { return state_; }

 private:
  std::shared_ptr<BlockState> state_;
};

using Visited = std::unordered_set<const torch::nn::Module*>;

void walk(const std::string& path, torch::nn::Module& module, Visited& visited,
          const ModuleVisit& visit) {
  if (!visited.insert(&module).second) return;
  visit(path, module);
  for (const auto& child : module.named_children()) {
    walk(path.empty() ? child.key() : path + "." + child.key(), *child.value(), visited, visit);
  }
}

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

std::shared_ptr<BlockState> find_marker(const torch::nn::Module& module) {
  const auto children = module.named_children();
  const auto* child = children.find(kMarkerName);
  if (child == nullptr) return nullptr;
  const auto marker = std::dynamic_pointer_cast<BlockMarker>(*child);
  return marker ? marker->state() : nullptr;
}

void remove_marker(torch::nn::Module& module) {
  if (find_marker(module)) module.unregister_module(kMarkerName);
}

std::shared_ptr<BlockGate> mark_block(const std::shared_ptr<torch::nn::Module>& module) {
  if (auto state = find_marker(*module)) return state;
  const auto state = std::make_shared<BlockState>(module);
  module->register_module(kMarkerName, std::make_shared<BlockMarker>(state));
  return state;
}

void for_each_module(torch::nn::Module& model, const ModuleVisit& visit) {
  Visited visited;
  walk("", model, visited, visit);
}

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
