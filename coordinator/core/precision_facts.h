// PrecisionFacts: what the formats cost the blocks of this job on these devices, measured before
// the first round. Carried in JobFacts (journalled), so that policy `precision` and a replay need
// no device. Plain values, pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/precision_format.h"
#include "coordinator/core/status.h"

namespace cox {

// Forward and backward of one block, the slowest rank's; index = Precision. 0 = not measured.
struct BlockFormats {
  std::array<std::int64_t, kPrecisions> step_us{};
  friend bool operator==(const BlockFormats&, const BlockFormats&) = default;
};

// Known to rank 0 only: empty on the others, and where nothing was measured.
struct PrecisionFacts {
  std::vector<BlockFormats> blocks;  // one per block, or empty
  PrecisionSet emulated = 0;         // formats that some rank's device only imitates
  friend bool operator==(const PrecisionFacts&, const PrecisionFacts&) = default;
};

// invalid_argument naming the first field that does not fit a job of that many blocks.
Status validate(const PrecisionFacts& facts, std::size_t blocks);

}  // namespace cox
