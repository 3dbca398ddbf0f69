// Formats figures for the pages, beside the functions of coordinator/core/text.h. Pure. The output
// does not depend on the locale.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/text.h"
#include "coordinator/core/units.h"

namespace cox::metrics {

std::string rate_text(double per_second);  // "12,340", "8.4"
std::string times_text(double ratio);      // "1.24×"
std::string utc_text(UnixTime time);       // "2026-03-01 12:03:22 UTC"

}  // namespace cox::metrics
