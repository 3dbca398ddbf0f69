// NextBytes: bytes that come piece by piece, so that a file is read in the memory of one piece.
#pragma once

#include <functional>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::io {

// Each call returns the next bytes, valid until the one after it, and none at the end; an error
// ends the reading.
using NextBytes = std::function<Result<std::string_view>()>;

}  // namespace cox::io
