// StorageLevels gives the blocks of adopted models their levels of recompute: which storages a
// block keeps at each level, found from a trial in which every block was recomputed in full and its
// region measured.
//
//   VisitWatch: measured regions -> planner::storage_front(), levels() -> VisitWatch: choices
//
// Where all ranks measured the same operators, they choose by rank 0's times, so that a level is
// the same set of storages on all of them, and one front serves all. Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {

class StorageLevels {
 public:
  // `visits` outlives it, and measures regions from here on.
  explicit StorageLevels(VisitWatch& visits);

  // Ends the measuring, and tells `visits` what each level of each block keeps. Does nothing the
  // second time.
  void learn();
  // The same, with rank 0's times where all ranks have equal operators. Collective; errors are
  // those of `ranks`.
  Status learn_together(transport::Communicator& ranks);

  // Returns how many levels the block has, from 0 to kRecomputeLevels. REQUIRES: learn() was
  // called.
  unsigned count(std::size_t block) const;
  // Returns the microseconds that a step takes longer under recompute in full or at one of the
  // block's levels; 0 where that is not known.
  std::int64_t added_us(std::size_t block, MemoryAction action) const;

 private:
  struct Block {
    std::int64_t full_ns = 0;
    std::vector<std::int64_t> level_ns;  // from level 1 on
  };

  void choose();

  VisitWatch& visits_;
  bool is_learnt_ = false;
  std::vector<std::optional<MeasuredRegion>> regions_;
  std::vector<Block> blocks_;
};

}  // namespace cox::detail
