// Blocks as label values: one series a block in models of up to 48 blocks; in larger ones a few
// neighbours share a series, so that their number stays bounded. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "coordinator/core/job.h"

namespace cox::metrics {

inline constexpr std::size_t kMostBlockSeries = 48;

struct BlockGroup {
  std::string label;  // "h.3", or "h.4 to h.7"; unlike all others of the job
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};

// In execution order, all of the same length but the last; none where the job names no blocks.
std::vector<BlockGroup> block_groups(const JobFacts& job);

}  // namespace cox::metrics
