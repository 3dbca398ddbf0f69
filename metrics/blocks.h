// The blocks of a model by name: as they are shown, as values of a label, and as they are named in
// sentences. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"

namespace cox::metrics {

// Returns the block's name, or "block 7" where the job names none.
std::string block_name(const JobFacts& job, std::size_t block);
// Returns the same, and nothing for a negative number, which is no block.
std::optional<std::string> named_block(const JobFacts& job, std::int32_t block);
// Returns "h.3", or "h.3 to h.7 (5)" for several blocks.
std::string block_names(const JobFacts& job, std::size_t first, std::size_t last);

// Returns the beginning that all block names share, up to and including their last common dot;
// empty for one block.
std::string common_prefix(const JobFacts& job);

struct BlockRange {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};
// Returns the first range of blocks in `text` that reads "blocks FIRST to LAST"; empty where there
// is none. A reason about several blocks in a row has no block of its own, but says this.
std::optional<BlockRange> blocks_named_in(const JobFacts& job, std::string_view text);

// Models of up to 48 blocks have one series a block; in larger ones a few neighbours share a
// series, so that the number of series stays bounded.
inline constexpr std::size_t kMostBlockSeries = 48;
struct BlockGroup {
  std::string label;  // "h.3", or "h.4 to h.7"; unlike all others of the job
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};
// Returns the groups in execution order, all of the same length but the last; none where the job
// names no blocks.
std::vector<BlockGroup> block_groups(const JobFacts& job);

}  // namespace cox::metrics
