// StorageLevels gives the blocks of adopted models their levels of recompute: which storages a
// block keeps at each level, found from a trial in which every block was recomputed in full and its
// region measured.
//
//   VisitWatch: measured regions -> planner::storage_front(), levels() -> VisitWatch: choices
//
// Where all ranks measured the same operators, they choose by rank 0's times, so that a level is
// the same set of storages on all of them, and one front serves all. Times are noisy, and levels
// chosen by them differ from run to run; the smallest peak that a job can reach should not. So one
// level is chosen by bytes alone: planner::least_alive() proposes sets, and the trial measures
// which of them has the lowest peak. Training thread only.
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

  // Returns the level of the block that has proposals to be tried; 0 where it has none. Blocks of
  // equal operators have equal ones, so only the first of them is tried.
  unsigned proposed_level(std::size_t block) const;
  // Returns how many proposals the block with the most has.
  std::size_t proposals() const;
  // Makes the level of each block that has so many proposals that one. REQUIRES: < proposals().
  void try_proposal(std::size_t proposal);
  // Chooses, for the block and those equal to it. Ends the proposals of each.
  void choose_proposal(std::size_t block, std::size_t proposal);

  // Returns how many levels the block has, from 0 to kRecomputeLevels. REQUIRES: learn() was
  // called.
  unsigned count(std::size_t block) const;
  // Returns the microseconds that a step takes longer under recompute in full or at one of the
  // block's levels; 0 where that is not known.
  std::int64_t added_us(std::size_t block, MemoryAction action) const;

 private:
  struct Level {
    std::int64_t ns = 0;
    HoldChoice choice;
  };
  struct Block {
    std::int64_t full_ns = 0;
    std::vector<Level> levels;     // from level 1 on
    std::size_t like = 0;          // the first block with equal operators
    std::size_t proposed = 0;      // the index of the level that the proposals are for
    std::vector<Level> proposals;  // none where there is nothing to choose
  };

  void choose();
  void choose_levels(std::size_t block);
  void show_levels(std::size_t block);

  VisitWatch& visits_;
  bool is_learnt_ = false;
  std::vector<std::optional<MeasuredRegion>> regions_;
  std::vector<Block> blocks_;
};

}  // namespace cox::detail
