#include "sdk/src/blocks/measurement.h"

#include <algorithm>
#include <chrono>

namespace cox::detail {

Nanoseconds steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

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
  return profile;
}

}  // namespace cox::detail
