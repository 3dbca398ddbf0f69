#include "sdk/src/memory/block_memory.h"

#include <torch/nn/module.h>

#include <utility>

namespace cox::detail {

std::uint64_t way_of(const torch::nn::Module& module) {  // FNV-1a
  std::uint64_t way = 0xCBF29CE484222325;
  for (const auto& part : module.modules()) {
    way = (way ^ (part->is_training() ? 1U : 2U)) * 0x100000001B3;
  }
  return way;
}

void BlockMemory::set_action(MemoryAction action) {
  action_ = action;
  is_steered_ = true;
}

MemoryAction BlockMemory::effective_action() const {
  const bool runs_again = action_ == MemoryAction::recompute || action_ == MemoryAction::tile;
  return runs_again && pinned() ? MemoryAction::keep : action_;
}

std::shared_ptr<SavedTensorFrame> BlockMemory::offload_frame(const BlockState& state) const {
  return offload_ ? offload_(state) : nullptr;
}

bool BlockMemory::needs_check(std::uint64_t way) const {
  if (is_check_requested_) return true;
  const MemoryAction action = effective_action();
  const bool runs_again = action == MemoryAction::recompute || action == MemoryAction::tile;
  return runs_again && !edited_.contains(way);
}

void BlockMemory::passed(std::uint64_t way, std::vector<at::Tensor> edited_buffers) {
  is_check_requested_ = false;
  edited_.insert_or_assign(way, std::move(edited_buffers));
}

std::vector<at::Tensor> BlockMemory::edited_buffers(std::uint64_t way) const {
  const auto found = edited_.find(way);
  return found == edited_.end() ? std::vector<at::Tensor>() : found->second;
}

void BlockMemory::pin(std::string reason) {
  is_check_requested_ = false;
  const std::lock_guard lock(mutex_);
  if (!pinned_) pinned_ = std::move(reason);
}

void BlockMemory::unpin() {
  edited_.clear();
  const std::lock_guard lock(mutex_);
  pinned_.reset();
}

std::optional<std::string> BlockMemory::pinned() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

void BlockMemory::reset() {
  action_ = MemoryAction::keep;
  is_steered_ = false;
  is_check_requested_ = false;
  offload_ = nullptr;
  unpin();
}

}  // namespace cox::detail
