#include "coordinator/core/precision_format.h"

namespace cox {

Status validate(const PrecisionFacts& facts, std::size_t blocks) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 50;
  if (!facts.blocks.empty() && facts.blocks.size() != blocks) {
    return invalid_argument("precision facts: expected ", blocks, " blocks or none, found ",
                            facts.blocks.size());
  }
  if (facts.emulated >> kPrecisions != 0) {
    return invalid_argument("precision facts: emulated: expected 4 bits, found ", facts.emulated);
  }
  for (std::size_t b = 0; b < facts.blocks.size(); ++b) {
    for (const std::int64_t us : facts.blocks[b].step_us) {
      if (us >= 0 && us <= kLongest) continue;
      return invalid_argument("precision facts: block ", b,
                              ": expected times from 0 to 2^50 us, found ", us);
    }
  }
  return ok_status();
}

}  // namespace cox
