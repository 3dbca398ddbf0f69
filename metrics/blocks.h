// Names the blocks of a model: for display, as values of a label, and in sentences. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"

namespace cox::metrics {

// Returns the block's name, or "block 7" if the job has no names.
std::string block_name(const JobFacts& job, std::size_t block);
// Returns the block's name; nothing for a negative number, which means no block.
std::optional<std::string> named_block(const JobFacts& job, std::int32_t block);
// Returns "h.3", or "h.3 to h.7 (5)" for several blocks.
std::string block_names(const JobFacts& job, std::size_t first, std::size_t last);

// Returns the common beginning of all block names, up to and including the last common dot. Empty
// for one block.
std::string common_prefix(const JobFacts& job);

struct BlockRange {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};
// Returns the first range in `text` that reads "blocks FIRST to LAST"; empty if there is none. A
// reason about several neighbouring blocks names them in its text only.
std::optional<BlockRange> blocks_named_in(const JobFacts& job, std::string_view text);

// Models of up to 48 blocks have one series per block. In larger models a few neighbours share a
// series, so the number of series stays bounded.
inline constexpr std::size_t kMostBlockSeries = 48;
struct BlockGroup {
  std::string label;  // "h.3", or "h.4 to h.7"; different from all others of the job
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
};
// Returns the groups in execution order, all of the same length except the last. None if the job
// has no names of blocks.
std::vector<BlockGroup> block_groups(const JobFacts& job);

}  // namespace cox::metrics
