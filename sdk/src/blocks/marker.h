// The marker by which a block is found in a model: a child module without parameters or buffers
// that is left out of archives and carries the block's state.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "sdk/src/blocks/block_state.h"

namespace cox::detail {

inline constexpr const char* kMarkerName = "coxswain_block";

class BlockMarker final : public torch::nn::Module {
 public:
  explicit BlockMarker(std::shared_ptr<BlockState> state)
      : torch::nn::Module(kMarkerName), state_(std::move(state)) {}
  bool is_serializable() const override { return false; }
  const std::shared_ptr<BlockState>& state() const { return state_; }

 private:
  std::shared_ptr<BlockState> state_;
};

// The state behind the module's own marker, or nullptr.
std::shared_ptr<BlockState> find_marker(const torch::nn::Module& module);
void remove_marker(torch::nn::Module& module);

}  // namespace cox::detail
