// OperatorTraits tell how an operator treats the elements of its tensors, as far as dividing them
// among ranks is concerned. Known from the operator's name and tags alone; looked up once. Any
// thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace cox::detail {

struct OperatorTraits {
  // Each element of the result depends on the elements of the arguments at its place only, so the
  // operator on slices gives slices.
  bool is_elementwise = false;
  bool makes_alike = false;      // its result has the form of its first tensor: zeros_like, clone
  bool is_fused_update = false;  // updates lists of parameters, gradients and states in one call
  bool changes_nothing = false;  // detach_: the tensor's history alone
  std::uint64_t hash = 0;        // of the name; equal in all processes
};

// Returns the traits of an operator; the reference stays valid.
const OperatorTraits& traits_of(const c10::OperatorHandle& handle);

}  // namespace cox::detail
