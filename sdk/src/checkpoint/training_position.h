// TrainingPosition: where in a run a state was taken, in the numbers that all ranks share. Part of
// every save and snapshot. Plain value.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/core/loss_scale.h"

namespace cox::detail {

struct TrainingPosition {
  std::uint64_t step = 0;    // updates done or skipped
  std::uint64_t cursor = 0;  // samples consumed since the start
  // What the cursor is a place in: the order that `seed` gives a data set of `samples`.
  std::optional<std::uint64_t> seed;
  std::uint64_t samples = 0;  // 0 = not known yet
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::optional<ScalerState> scaler;  // where one was ever at work
};

}  // namespace cox::detail
