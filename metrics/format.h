// Numbers as people read them. Pure; the same output everywhere (no locale).
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/units.h"

namespace cox::metrics {

std::string fixed(double value, int decimals);          // "2.41"; "NaN", "inf" as words
std::string significant(double value, int digits);      // "0.0123", "1.24", "5.6e-09"
std::string grouped(std::uint64_t value);               // "1,234,567"
std::string rate_text(double per_second);               // "12,340", "8.4"
std::string seconds_text(double seconds);               // "412 ms", "1.83 s", "85 us"
std::string duration_text(double seconds);              // "2 h 05 min", "43 s"
std::string bytes_text(std::uint64_t bytes);            // "3.1 GiB"
std::string percent_text(double fraction, int digits);  // "41 %"
std::string times_text(double ratio);                   // "1.24×"
std::string utc_text(UnixTime time);                    // "2026-03-01 12:03:22 UTC"
std::string clock_text(UnixTime time);                  // "12:03:22"

}  // namespace cox::metrics
