#include "sdk/src/blocks/measurement.h"

#include <algorithm>
#include <chrono>
#include <utility>

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

void BlockMeasurements::resize(std::size_t blocks) {
  const std::scoped_lock lock(mutex_);
  known_.resize(blocks);
}

MeasureMode BlockMeasurements::next_mode() {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(new_shapes_, false)) full_until_ = steps_ + 1;
  }
  const std::uint64_t step = steps_++;
  if (step < full_until_) return MeasureMode::full;
  return step % kTimesEverySteps == 0 ? MeasureMode::times : MeasureMode::off;
}

void BlockMeasurements::block_measured(BlockId block,
                                       const BlockMeasurement& measurement) noexcept {
  const std::scoped_lock lock(mutex_);
  if (block.value() >= known_.size()) return;
  Known& known = known_[block.value()];
  const bool has_new_shape =
      known.is_complete && known.measurement.shape_key != measurement.shape_key;
  if (measurement.mode == MeasureMode::full) {
    known.is_unsent = !known.is_complete || has_new_shape || known.is_unsent;
    known.is_complete = true;
    known.measurement = measurement;
    return;
  }
  new_shapes_ = new_shapes_ || has_new_shape;
  known.measurement.forward = measurement.forward;
  known.measurement.backward = measurement.backward;
  known.is_unsent = known.is_unsent || known.is_complete;
}

void BlockMeasurements::read_times(std::span<BlockTime> times) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t b = 0; b < times.size(); ++b) {
    times[b].forward_seconds = known_[b].measurement.forward.count();
    times[b].backward_seconds = known_[b].measurement.backward.count();
  }
}

void BlockMeasurements::set_flops(std::span<const double> flops) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t b = 0; b < known_.size(); ++b) {
    Known& known = known_[b];
    known.is_unsent = known.is_unsent || (known.is_complete && known.flops != flops[b]);
    known.flops = flops[b];
  }
}

Fragment BlockMeasurements::next(std::span<const std::string> names) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t tried = 0; tried < known_.size(); ++tried) {
    const std::size_t b = next_;
    next_ = (next_ + 1) % known_.size();
    if (!known_[b].is_unsent) continue;
    known_[b].is_unsent = false;
    const BlockId block(static_cast<BlockId::rep>(b));
    BlockProfile profile = block_profile(block, known_.size(), names[b], known_[b].measurement);
    profile.flops = static_cast<float>(known_[b].flops);
    return make_fragment(profile);
  }
  return {};
}

}  // namespace cox::detail
