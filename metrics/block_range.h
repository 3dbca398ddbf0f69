// Which blocks a reason is about, where it is about several in a row and so has no block of its
// own: its sentence says "blocks FIRST to LAST". Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "coordinator/core/job.h"

namespace cox::metrics {

struct BlockRange {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};

// The first such range of the job's blocks in `text`; empty where there is none.
std::optional<BlockRange> blocks_named_in(const JobFacts& job, std::string_view text);

}  // namespace cox::metrics
