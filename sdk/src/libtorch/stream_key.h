// The dispatch key of the operator stream: one above autocast and autograd that no device and no
// part of LibTorch registers kernels for. Kernels are registered in operator_stream.cc by its name,
// since the macro takes no constant.
#pragma once

#include <c10/core/DispatchKey.h>

namespace cox::detail {

inline constexpr c10::DispatchKey kStreamKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace cox::detail

#define COX_STREAM_KEY TESTING_ONLY_GenericMode
