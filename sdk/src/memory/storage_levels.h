// StorageLevels gives the blocks of adopted models their levels of recompute: which storages a
// block keeps at each level, found from a trial in which every block was recomputed in full and its
// region measured.
//
//   SteeredRegion: measured regions -> planner::storage_front(), levels() -> BlockSteering: choices
//
// Times are noisy, and levels chosen by them differ from run to run; the smallest peak that a job
// can reach should not. So one level is chosen by bytes alone (planner::least_alive()). Training
// thread only.
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
  // Chooses levels for each block that was measured, and sets in `steering` what the block keeps at
  // each.
  StorageLevels(const MeasuredRegions& regions, BlockSteering& steering);

  // Returns how many levels the block has, from 0 to kRecomputeLevels.
  unsigned count(std::size_t block) const;
  // Returns the microseconds that a step takes longer under recompute in full or at one of the
  // block's levels; 0 where that is not known.
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
