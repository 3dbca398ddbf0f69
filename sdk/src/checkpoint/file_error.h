// What kind of Status a file operation's errno is: full (resource_exhausted), absent (not_found),
// not allowed (failed_precondition). Pure.
#pragma once

#include "coordinator/core/status.h"

namespace cox::detail {

// `otherwise`: for those that are none of these.
StatusCode code_of_errno(int error, StatusCode otherwise);

}  // namespace cox::detail
