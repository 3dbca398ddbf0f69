// StorageLevels gives the blocks of adopted models their levels of recompute: which storages a
// block keeps at each level, found from a trial in which every block was recomputed in full and its
// region measured.
//
//   SteeredRegion: measured regions -> planner::storage_front(), levels() -> BlockSteering: choices
//
// Where all ranks measured the same operators, they choose by what rank 0 measured, so that a level
// is the same set of storages on all of them, and one front serves all. Times are noisy, and levels
// chosen by them differ from run to run; the smallest peak that a job can reach should not. So one
// level is chosen by bytes alone (planner::least_alive()). Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/blocks/steered_region.h"
#include "sdk/src/memory/tensor_memory.h"

namespace cox::detail {

class StorageLevels {
 public:
  // Both outlive it. `region` measures regions from here on, in the memory of one device.
  StorageLevels(SteeredRegion& region, BlockSteering& steering, TensorMemory memory);

  // Ends the measuring, and tells the steering what each level of each block keeps.
  void learn();
  // The same, by what rank 0 measured where all ranks have equal operators. Collective; errors are
  // those of `ranks`.
  Status learn_together(transport::Communicator& ranks);

  // Returns how many levels the block has, from 0 to kRecomputeLevels. REQUIRES for both: levels
  // were learnt.
  unsigned count(std::size_t block) const;
  // Returns the microseconds that a step takes longer under recompute in full or at one of the
  // block's levels; 0 where that is not known.
  std::int64_t added_us(std::size_t block, MemoryAction action) const;

 private:
  struct Block {
    std::int64_t full_ns = 0;
    std::vector<std::int64_t> levels_ns;  // from level 1 on
  };

  void choose(const std::vector<std::optional<MeasuredRegion>>& regions);
  void choose_levels(std::size_t block, const MeasuredRegion& region);

  SteeredRegion& region_;
  BlockSteering& steering_;
  std::vector<Block> blocks_;
};

}  // namespace cox::detail
