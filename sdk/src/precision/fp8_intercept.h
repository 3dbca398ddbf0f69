// The dispatch key by which products come to us while an Fp8Scope is open. It belongs to a device
// that nobody has, and comes before autograd and autocast. Its kernels are registered when the
// library is loaded (fp8_intercept.cc); they do nothing while the key is off, which it is except in
// scopes.
#pragma once

#include <c10/core/DispatchKey.h>

namespace cox::detail {

c10::DispatchKey fp8_key();

}  // namespace cox::detail
