#include "metrics/numerics_rows.h"

#include <algorithm>

namespace cox::metrics {
namespace {

constexpr std::uint64_t kLatelyRounds = 1000;
constexpr std::size_t kRowsShown = 24;

template <class Known>
void keep_larger(Known& into, const Known& from) {
  if (from.is_known && (!into.is_known || from.value > into.value)) into = from;
}

void add_to(BlockRow& row, std::size_t index, const BlockNumerics& block) {
  row.last = index;
  BlockNumerics& worst = row.worst;
  keep_larger(worst.noise, block.noise);
  keep_larger(worst.underflow, block.underflow);
  keep_larger(worst.saturated, block.saturated);
  keep_larger(worst.activation, block.activation);
  keep_larger(worst.gradient, block.gradient);
  keep_larger(worst.curvature, block.curvature);
  worst.changed_round = std::max(worst.changed_round, block.changed_round);
  worst.changes = std::max(worst.changes, block.changes);
  worst.overflowed_round = std::max(worst.overflowed_round, block.overflowed_round);
  for (std::size_t p = 0; p < worst.overflow_rounds.size(); ++p)
    worst.overflow_rounds[p] += block.overflow_rounds[p];
  if (block.newest && (!worst.newest || worst.newest->round < block.newest->round))
    worst.newest = block.newest;
}

bool are_alike(const BlockNumerics& a, const BlockNumerics& b, RoundId now) {
  return a.format == b.format && a.planned == b.planned && !is_hot(a, now) && !is_hot(b, now);
}

}  // namespace

std::uint64_t overflows(const BlockNumerics& block) {
  return block.overflow_rounds[0] + block.overflow_rounds[1];
}

bool is_hot(const BlockNumerics& block, RoundId now) {
  return overflows(block) > 0 && block.overflowed_round.value() + kLatelyRounds >= now.value();
}

std::vector<BlockRow> block_rows(const NumericsView& view, RoundId now) {
  std::vector<BlockRow> rows;
  const bool may_share = view.blocks.size() > kOwnRows;
  for (std::size_t b = 0; b < view.blocks.size(); ++b) {
    const BlockNumerics& block = view.blocks[b];
    if (may_share && !rows.empty() && are_alike(rows.back().worst, block, now))
      add_to(rows.back(), b, block);
    else
      rows.push_back({b, b, block});
  }
  return rows;
}

std::vector<BlockRow> most_telling(std::vector<BlockRow> rows, RoundId now) {
  if (rows.size() <= kRowsShown) return rows;
  std::stable_partition(rows.begin(), rows.end(),
                        [now](const BlockRow& row) { return is_hot(row.worst, now); });
  rows.resize(kRowsShown);
  std::sort(rows.begin(), rows.end(),
            [](const BlockRow& a, const BlockRow& b) { return a.first < b.first; });
  return rows;
}

}  // namespace cox::metrics
