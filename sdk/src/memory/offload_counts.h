// What offloading has done since the counts were last reset. Plain values.
#pragma once

#include <cstdint>

namespace cox::detail {

struct OffloadCounts {
  std::int64_t written_bytes = 0;  // sent to the tier
  std::int64_t read_bytes = 0;     // fetched from it
  std::int64_t stayed_bytes = 0;   // were to go, but the tier was full or broken
  std::int64_t tier_bytes = 0;     // in use there now, in whole pages
  std::int64_t tier_peak_bytes = 0;
  std::int64_t write_wait_us = 0;  // the training thread waited for writes, or wrote by itself
  std::int64_t read_wait_us = 0;   // likewise for reads, in backward
};

}  // namespace cox::detail
