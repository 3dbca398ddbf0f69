// BlockMemory: what is known and decided about the memory of one block: its action, whether running
// it again was seen to give the same bits, and why it is pinned to keep where it is. A pinned block
// is kept when recompute or tile is asked for. Actions are set between steps by the thread that
// trains; a pin may come from an engine's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job.h"
#include "sdk/src/blocks/saved_tensor_engine.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

class BlockState;

// Tells apart what a block computes: which of its modules are in training.
std::uint64_t way_of(const torch::nn::Module& module);

// Makes the frame that one call of a block is offloaded with; nullptr keeps that call.
using OffloadFrames = std::function<std::shared_ptr<SavedTensorFrame>(const BlockState&)>;

class BlockMemory {
 public:
  // For all calls from now on; what is saved already stays under the action it was saved under.
  void set_action(MemoryAction action);
  MemoryAction action() const { return action_; }  // as set
  MemoryAction effective_action() const;           // as carried out
  bool is_steered() const { return is_steered_; }  // an action was ever set
  void set_offload(OffloadFrames frames) { offload_ = std::move(frames); }
  std::shared_ptr<SavedTensorFrame> offload_frame(const BlockState& state) const;

  // A call is checked when somebody
  // asked for it, or when it is about to be recomputed and has not been checked that way.
  bool needs_check(std::uint64_t way) const;
  void request_check() { is_check_requested_ = true; }
  bool wants_check() const { return is_check_requested_; }
  // Running again gave the same bits and edited these buffers.
  void passed(std::uint64_t way, std::vector<at::Tensor> edited_buffers);
  // Empty when the block was not checked that way.
  std::vector<at::Tensor> edited_buffers(std::uint64_t way) const;
  std::vector<at::Tensor> edited_buffers(const torch::nn::Module& module) const {
    return edited_buffers(way_of(module));
  }

  void pin(std::string reason);  // also ends a requested check
  void unpin();                  // the next call to be recomputed is checked anew
  std::optional<std::string> pinned() const;

  void reset();  // as at the start

 private:
  MemoryAction action_ = MemoryAction::keep;
  bool is_steered_ = false;
  bool is_check_requested_ = false;
  OffloadFrames offload_;
  std::map<std::uint64_t, std::vector<at::Tensor>> edited_;  // by way

  mutable std::mutex mutex_;  // guards pinned_
  std::optional<std::string> pinned_;
};

}  // namespace cox::detail
