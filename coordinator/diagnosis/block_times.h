// What the blocks of a rank take, by the newest profile of each (BlockProfile of core/signal.h).
//
//   signals of a journal -> BlockProfiles -> BlockTimes -> rank_lanes.h
//
// Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/signal.h"

namespace cox::diagnosis {

struct BlockTimes {
  struct Block {
    std::string name;
    std::int64_t forward_ns = 0;
    std::int64_t backward_ns = 0;
  };
  double round = 0;           // in which the last of them was measured
  std::vector<Block> blocks;  // in the order in which they run
};

// Keeps 16 bytes a block and rank, of up to kMostBlocks; the ranks that report later have none.
class BlockProfiles {
 public:
  static constexpr std::size_t kMostBlocks = std::size_t{1} << 20;

  // `names` of a job's blocks, in the order in which they run.
  explicit BlockProfiles(std::vector<std::string> names = {}) : names_(std::move(names)) {}
  // Keeps the profile that the report carries, if it does and fits the job.
  void note(const RankSignal& report);
  // No blocks until all of the rank's have been measured.
  BlockTimes times(std::int32_t rank) const;

 private:
  struct Profile {
    std::int64_t forward_ns = -1;  // -1 = not known yet
    std::int64_t backward_ns = -1;
  };
  struct OfRank {
    double round = 0;  // of the newest
    std::vector<Profile> blocks;
  };
  std::vector<std::string> names_;
  std::map<std::int32_t, OfRank> ranks_;
};

}  // namespace cox::diagnosis
