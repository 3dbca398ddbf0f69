// The dispatch key of the operator stream. The key is above autocast and autograd, and neither
// devices nor parts of LibTorch register kernels for it. operator_stream.cc registers kernels by
// the key's name, since the macro takes no constant.
#pragma once

#include <c10/core/DispatchKey.h>

namespace cox::detail {

inline constexpr c10::DispatchKey kStreamKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace cox::detail

#define COX_STREAM_KEY TESTING_ONLY_GenericMode
