// Blocks as rows of a table: in models of many blocks neighbours of one format share a row, for
// which the worst of them speaks; a block that overflowed lately keeps a row of its own. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "metrics/numerics_view.h"

namespace cox::metrics {

struct BlockRow {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  BlockNumerics worst;   // the block itself, where it is alone; overflows add up
};

// Rounds in which the block overflowed, in either pass.
std::uint64_t overflows(const BlockNumerics& block);

// Whether it did so in the last 1,000 rounds. A scaler that probes its limit makes every block
// overflow some time, which is no news.
bool is_hot(const BlockNumerics& block, RoundId now);

inline constexpr std::size_t kOwnRows = 24;  // blocks that all have a row of their own
std::vector<BlockRow> block_rows(const NumericsView& view, RoundId now);

// At most 24 of them, in their order: those that overflowed lately, then the first.
std::vector<BlockRow> most_telling(std::vector<BlockRow> rows, RoundId now);

}  // namespace cox::metrics
