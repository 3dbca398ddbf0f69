// StorageLevels chooses levels of recompute for the blocks of adopted models: the storages that a
// block keeps at each level. The input is a trial that recomputed every block in full and measured
// its region.
//
//   SteeredRegion: measured regions -> planner::storage_front(), levels() -> BlockSteering: choices
//
// Times are noisy, so levels chosen by time differ between runs. A job's smallest reachable peak
// should not, so one level is chosen by bytes alone (planner::least_alive()). Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/blocks/steered_region.h"

namespace cox::detail {

class StorageLevels {
 public:
  // Chooses levels for each measured block, and sets in `steering` the storages kept at each.
  StorageLevels(const MeasuredRegions& regions, BlockSteering& steering);

  // Returns the number of the block's levels, from 0 to kRecomputeLevels.
  unsigned count(std::size_t block) const;
  // Returns the microseconds added to a step by full recompute or one of the block's levels; 0 if
  // unknown.
  std::int64_t added_us(std::size_t block, MemoryAction action) const;

 private:
  struct Block {
    std::int64_t full_ns = 0;
    std::vector<std::int64_t> levels_ns;  // from level 1 on
  };

  void choose_levels(std::size_t block, const MeasuredRegion& region, BlockSteering& steering);

  std::vector<Block> blocks_;
};

}  // namespace cox::detail
