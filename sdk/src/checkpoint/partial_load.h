// Fits a save to a program with another model (checkpoint.partial): matching tensors come from the
// save, the others from the program. Pure functions of values; tensors are shared, not copied.
#pragma once

#include <string>

#include "sdk/src/checkpoint/checkpoint.h"

namespace cox::detail {

struct PartialLoad {
  Checkpoint state;
  // The unmatched part of the model, "missing: head.bias; unexpected: ...; different: ...". Empty
  // if the save fits; `state` is then the whole save.
  std::string left;
};

// Returns `saved`, fitted to the program's state `present`. A tensor of the model matches if name,
// shape and type are equal. A matching parameter's optimizer state comes from the save, if the save
// has the same kind of optimizer and stores the state by name; options and groups are the
// program's. Buckets and each rank's own state start anew.
PartialLoad fit_to(Checkpoint saved, const Checkpoint& present);

}  // namespace cox::detail
