#include "sdk/src/blocks/measurement.h"

#include <algorithm>

namespace cox::detail {

BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement) {
  BlockProfile profile;
  profile.block = block;
  profile.blocks = static_cast<std::uint16_t>(blocks);
  const std::size_t cut = name.size() - std::min(name.size(), profile.name.size());
  std::copy(name.begin() + static_cast<std::ptrdiff_t>(cut), name.end(), profile.name.begin());
  profile.parameters = saturated(measurement.parameters);
  profile.saved_bytes = measurement.saved_bytes;
  profile.forward_seconds = static_cast<float>(measurement.forward.count());
  profile.backward_seconds = static_cast<float>(measurement.backward.count());
  profile.boundary_kib =
      static_cast<float>(measurement.input_bytes + measurement.output_bytes) / 1024.0f;
  return profile;
}

}  // namespace cox::detail
