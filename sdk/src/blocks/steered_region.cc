#include "sdk/src/blocks/steered_region.h"

#include "coordinator/core/text.h"

namespace cox::detail {

void SteeredRegion::open(BlockId block) {
  block_ = block;
  const MemoryAction action = steering_.action(block);
  if (is_recompute(action)) {
    tape_ = Tape::make("block " + steering_.name(block), steering_.hold_choice(block));
    tape_->time_replays(replay_ns_);
    if (is_measuring_) {
      tape_->measure(
          std::make_shared<RegionMeter>([now = now_] { return now().count(); }, read_memory_));
    }
  }
  if (action == MemoryAction::offload && open_offload_)
    offload_ = open_offload_(steering_.name(block));
}

// A tape uses the block's choice until it is closed.
void SteeredRegion::close() {
  if (tape_ != nullptr) {
    tape_->close();
    if (is_measuring_) note_measured(*block_);
  }
  tape_.reset();
  if (offload_ != nullptr) std::exchange(offload_, nullptr)->leave();
  block_.reset();
}

bool SteeredRegion::begin_tile(std::string_view name, TileDrop drop) {
  has_tiles_ = has_tiles_ || (block_ && drop == TileDrop::where_planned);
  if (recording() != nullptr) return false;  // the region's tape covers the tile
  const bool is_planned = block_ && steering_.action(*block_) == MemoryAction::tile;
  if (!is_planned && drop == TileDrop::where_planned) return false;
  tile_ = Tape::make(block_ ? concat("block ", steering_.name(*block_), ", ", name)
                            : std::string(name));
  tile_->time_replays(replay_ns_);
  return true;
}

void SteeredRegion::end_tile() noexcept {
  std::exchange(tile_, nullptr)->close();
}

void SteeredRegion::begin_measuring(RegionMeter::ReadMemory memory) {
  read_memory_ = std::move(memory);
  is_measuring_ = true;
  measured_.assign(steering_.size(), std::nullopt);
}

MeasuredRegions SteeredRegion::end_measuring() {
  is_measuring_ = false;
  read_memory_ = nullptr;
  for (std::optional<MeasuredRegion>& region : measured_) {
    if (region) learn_backward(*region);
  }
  return std::exchange(measured_, {});
}

void SteeredRegion::note_measured(BlockId block) {
  std::optional<MeasuredRegion>& known = measured_[block.value()];
  MeasuredRegion now = measured_region(*tape_);
  if (known && is_alike(known->graph, now.graph)) {
    take_lesser(*known, now);
  } else {
    known = std::move(now);
  }
}

}  // namespace cox::detail
