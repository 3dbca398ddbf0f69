// How fast a folder takes and gives back bytes, for the planner. Measured the way offloading works:
// through the page cache, without waiting for the disk. So it is right for as long as the system
// has memory for the cache, and too good once the disk itself has to keep up.
#pragma once

#include <cstdint>
#include <filesystem>

#include "coordinator/core/status.h"

namespace cox::detail {

struct TierSpeed {
  std::int64_t write_bytes_per_ms = 0;
  std::int64_t read_bytes_per_ms = 0;
};

// Blocks while it writes and reads `bytes` three times over in a file that is gone afterwards, and
// takes as much memory meanwhile; the middle of the three counts. Each rank measures on its own; to
// know what is left when all copy at once, all call it at the same time. Errors as of TierFile.
Result<TierSpeed> measure_tier(const std::filesystem::path& folder,
                               std::int64_t bytes = std::int64_t{32} << 20);

}  // namespace cox::detail
