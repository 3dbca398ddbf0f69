// SteeredRegion is the forward pass's current region, under the memory action of its block: a tape
// for recompute, a frame for offload, nothing for keep. A tile within the region has its own tape.
//
//   open(block) -> BlockSteering's action -> tape, frame or neither -> close()
//
// A block's region is its first visit in a forward pass (visit_watch.h), up to the first visit of
// the next block. So a later visit (an embedding used as the head) belongs to the surrounding
// region, and the regions of a pass are a chain. Training thread only; saved tensors own their
// tapes, which may outlive the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/stream/operator_times.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

using MeasuredRegions = std::vector<std::optional<MeasuredRegion>>;  // one for each block

class SteeredRegion {
 public:
  using Now = std::function<Nanoseconds()>;  // monotonic
  // Both arguments outlive the object.
  SteeredRegion(const BlockSteering& steering, const Now& now) : steering_(steering), now_(now) {}

  // Sets the function that opens a frame for an offloaded block, by the block's name. Without a
  // function the block is kept.
  using OpenFrame = std::function<std::shared_ptr<SavedTensorFrame>(const std::string& block)>;
  void set_offload(OpenFrame open) { open_offload_ = std::move(open); }

  // Opens the block's region. REQUIRES: none is open.
  void open(BlockId block);
  // Closes the region, if one is open.
  void close();
  std::optional<BlockId> block() const { return block_; }
  // Returns the tape that records operators now, or null.
  Tape* recording() const { return tile_ != nullptr ? tile_.get() : tape_.get(); }
  // Makes the hooks that keep, drop or move one saved tensor. Null leaves the tensor to autograd.
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() {
    if (Tape* tape = recording()) return tape->make_hooks();
    return offload_ != nullptr ? offload_->make_hooks() : nullptr;
  }
  // Keeps tensors of this storage, which is a parameter's, in memory.
  void leave_alone(const c10::StorageImpl* storage) const {
    if (offload_ != nullptr) offload_->leave_alone(storage);
  }

  // As in SavedTensorFrame.
  bool begin_tile(std::string_view name, TileDrop drop);
  void end_tile() noexcept;
  // Returns whether a tile of tile() was computed in a region so far, and so can be dropped.
  bool has_tiles() const { return has_tiles_; }

  // Returns the time spent so far on remaking dropped tensors.
  Nanoseconds replayed() const { return Nanoseconds(replay_ns_->load(std::memory_order_relaxed)); }
  // begin_measuring() starts to measure recomputed regions. end_measuring() stops, and returns one
  // region for each block, with the least time of each operator and the cost of the newest backward
  // pass. Any thread may call `memory`; without it bytes are not measured.
  void begin_measuring(RegionMeter::ReadMemory memory = {});
  MeasuredRegions end_measuring();

 private:
  void note_measured(BlockId block);

  const BlockSteering& steering_;
  const Now& now_;
  std::optional<BlockId> block_;               // block of the open region
  std::shared_ptr<Tape> tape_;                 // null unless the region is recomputed
  std::shared_ptr<Tape> tile_;                 // tape of the open tile; null unless dropped
  std::shared_ptr<SavedTensorFrame> offload_;  // null unless the region is offloaded
  OpenFrame open_offload_;
  bool has_tiles_ = false;
  // Tapes add to the counter, and may outlive the region.
  const std::shared_ptr<std::atomic<std::int64_t>> replay_ns_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  bool is_measuring_ = false;
  RegionMeter::ReadMemory read_memory_;  // while measuring
  MeasuredRegions measured_;
};

}  // namespace cox::detail
