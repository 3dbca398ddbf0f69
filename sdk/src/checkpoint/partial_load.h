// A save that does not fit a program in all of its model, made into a state that does
// (checkpoint.partial): tensors that match are the save's, the others stay as the program has them.
// Pure functions of values; tensors are shared, not copied.
#pragma once

#include <string>

#include "sdk/src/checkpoint/checkpoint.h"

namespace cox::detail {

struct PartialLoad {
  Checkpoint state;
  // The part of the model that was left, "missing: head.bias; unexpected: ...; different: ...".
  // Empty where the save fits, and `state` is the whole save then.
  std::string left;
};

// `present` is the program's own state. A tensor of the model matches where name, shape and type
// are equal. The optimizer's state comes from the save for parameters that match, where the save is
// of the same kind of optimizer and has it by name; its options and groups are the program's.
// Buckets and what ranks remember start anew.
PartialLoad fit_to(Checkpoint saved, const Checkpoint& present);

}  // namespace cox::detail
