// Runs of neighbouring ranks among those that reported. Columns by rank (what a policy remembers)
// and columns by report lie side by side within a run, so that loops over both are plain ones; when
// all ranks report there is one run. Pure values.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/core/units.h"

namespace cox {

struct RankRun {
  std::size_t rank = 0;    // the first one
  std::size_t report = 0;  // its place among the reports
  std::size_t size = 0;
};

// Requires: ascending ranks, none negative.
inline std::vector<RankRun> runs_of(std::span<const RankId> ranks) {
  std::vector<RankRun> runs;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<std::size_t>(ranks[i].value());
    if (runs.empty() || rank != runs.back().rank + runs.back().size) runs.push_back({rank, i, 0});
    ++runs.back().size;
  }
  return runs;
}

}  // namespace cox
