// What a save says about itself beside its tensors: the place in the run, and the loss scaler where
// one was at work. Kept as text in the header of the model's file. Pure.
#pragma once

#include <map>
#include <string>

#include "coordinator/core/status.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"

namespace cox::detail {

using Metadata = std::map<std::string, std::string>;

Metadata describe(const Checkpoint& checkpoint);
// Fills the position. data_loss naming the field that is missing or cannot be.
Status read_description(const Metadata& metadata, Checkpoint& checkpoint);

}  // namespace cox::detail
