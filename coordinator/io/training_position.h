// TrainingPosition is the position of a saved state in a run, in numbers common to all ranks. A
// save keeps it as text in the header of the model's file. The text may be damaged or changed by
// hand, so read_position() checks each number, alone and against the others. Values and pure
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
  // The cursor counts places in the order that `seed` gives to a data set of `samples`.
  std::optional<std::uint64_t> seed{};
  std::uint64_t samples = 0;    // 0 = not known yet
  std::uint64_t data_hash = 0;  // hash of some samples; 0 = not known, or not reproducible
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::optional<ScalerState> scaler{};  // set if a scaler was ever active

  // Returns whether the previous step was the last one of an epoch.
  bool ends_epoch() const { return samples > 0 && cursor % samples == 0; }
};

// Metadata holds the entries of a safetensors header beside the tensors.
using Metadata = std::map<std::string, std::string>;

Metadata describe(const TrainingPosition& position);
// Returns the step alone, for files of a save without the full position.
Metadata describe_step(std::uint64_t step);

// Parses the position. Errors name the field that is missing or impossible: a number above 2^53,
// more skipped steps than steps, fewer samples consumed than steps done.
Result<TrainingPosition> read_position(const Metadata& metadata);

// Checks a file's position, if it has one, against the save of `step`.
Status check_place(const Metadata& metadata, std::uint64_t step);

}  // namespace cox::io
