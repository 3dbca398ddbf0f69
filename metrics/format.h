// Numbers as people read them. Pure; the same output everywhere (no locale).
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/text.h"
#include "coordinator/core/units.h"

namespace cox::metrics {

using cox::bytes_text;
using cox::duration_text;
using cox::fixed;
using cox::grouped;
using cox::percent_text;
using cox::seconds_text;
using cox::significant;

std::string rate_text(double per_second);  // "12,340", "8.4"
std::string times_text(double ratio);      // "1.24×"
std::string utc_text(UnixTime time);       // "2026-03-01 12:03:22 UTC"
std::string clock_text(UnixTime time);     // "12:03:22"

}  // namespace cox::metrics
