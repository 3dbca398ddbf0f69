// TrainingPosition says where in a run a state was taken, in the numbers that all ranks share. A
// save keeps it as text in the header of its model's file. The text may be damaged or changed by
// hand, so each number is checked when it is read, and against the others. Values and pure
// functions; errors are data_loss.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/core/loss_scale.h"
#include "coordinator/core/status.h"

namespace cox::io {

struct TrainingPosition {
  std::uint64_t step = 0;    // updates done or skipped
  std::uint64_t cursor = 0;  // samples consumed since the start
  // The cursor is a place in the order that `seed` gives a data set of `samples`.
  std::optional<std::uint64_t> seed{};
  std::uint64_t samples = 0;    // 0 = not known yet
  std::uint64_t data_hash = 0;  // of some of its samples; 0 = not known, or not the same each time
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::optional<ScalerState> scaler{};  // where one was ever at work

  // The step before was the last one of an epoch.
  bool ends_epoch() const { return samples > 0 && cursor % samples == 0; }
};

// Metadata is what the header of a safetensors file says beside its tensors.
using Metadata = std::map<std::string, std::string>;

Metadata describe(const TrainingPosition& position);
// Returns the step alone, for the files of a save that say no more.
Metadata describe_step(std::uint64_t step);

// Names the field that is missing or cannot be: a number above 2^53, more skipped steps than steps,
// fewer samples consumed than steps done.
Result<TrainingPosition> read_position(const Metadata& metadata);

// Checks the place in the run that a file of a save of `step` says, where it says one.
Status check_place(const Metadata& metadata, std::uint64_t step);

}  // namespace cox::io
