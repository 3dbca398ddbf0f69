#include "sdk/src/blocks/measurement.h"

#include <algorithm>
#include <limits>

namespace cox::detail {

BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement) {
  constexpr std::uint64_t kMaxCount = std::numeric_limits<std::uint32_t>::max();
  BlockProfile profile;
  profile.block = block;
  profile.blocks = static_cast<std::uint16_t>(blocks);
  const std::size_t cut = name.size() - std::min(name.size(), profile.name.size());
  std::copy(name.begin() + static_cast<std::ptrdiff_t>(cut), name.end(), profile.name.begin());
  profile.parameters = static_cast<std::uint32_t>(std::min(measurement.parameters, kMaxCount));
  profile.saved_bytes = measurement.saved_bytes;
  profile.forward_seconds = static_cast<float>(measurement.forward.count());
  profile.backward_seconds = static_cast<float>(measurement.backward.count());
  profile.boundary_kib =
      static_cast<float>(measurement.input_bytes + measurement.output_bytes) / 1024.0f;
  return profile;
}

}  // namespace cox::detail
