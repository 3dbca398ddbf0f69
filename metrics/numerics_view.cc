#include "metrics/numerics_view.h"

#include <algorithm>

namespace cox::metrics {

std::array<std::int32_t, kPrecisions> format_blocks(const NumericsView& view) {
  std::array<std::int32_t, kPrecisions> blocks{};
  for (const BlockNumerics& block : view.blocks) ++blocks[static_cast<std::size_t>(block.format)];
  return blocks;
}

bool is_at_work(const NumericsView& view) {
  const bool is_plain =
      std::all_of(view.blocks.begin(), view.blocks.end(), [](const BlockNumerics& block) {
        return block.format == Precision::fp32 && block.planned == Precision::fp32 &&
               block.changes == 0;
      });
  return !is_plain || view.loss_scale > 0 || view.overflow_rounds > 0;
}

}  // namespace cox::metrics
