#include "coordinator/policies/straggler_memory.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;

// The column that serves as an index; a saved state may be damaged.
bool is_name(double value) {
  return value >= 0 && value <= static_cast<double>(kOwnPhases.size()) &&
         value == std::floor(value);
}

}  // namespace

StragglerMemory::StragglerMemory(NumbersState state, std::int32_t world_size)
    : ranks_(static_cast<std::size_t>(world_size)),
      channel_columns_(compares_with_own_past(world_size) ? 5 : 4),
      state_(std::move(state)) {
  const std::size_t size = kHeader + ranks_ * (kRankColumns + kChannels * channel_columns_);
  const auto world = static_cast<double>(world_size);
  const bool fits = state_.version == kVersion && state_.values.size() == size && at(0) == world;
  if (fits && std::ranges::all_of(named(), is_name)) return;
  state_.version = kVersion;
  state_.values.assign(size, 0.0);
  at(0) = world;
}

}  // namespace cox
