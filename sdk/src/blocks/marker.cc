#include "sdk/src/blocks/marker.h"

namespace cox::detail {

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

}  // namespace cox::detail
