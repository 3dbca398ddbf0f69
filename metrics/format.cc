#include "metrics/format.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace cox::metrics {
namespace {

std::time_t whole_seconds(UnixTime time) {
  return std::isfinite(time.seconds) && std::abs(time.seconds) < 1e12
             ? static_cast<std::time_t>(std::floor(time.seconds))
             : 0;
}

}  // namespace

std::string rate_text(double per_second) {
  if (!std::isfinite(per_second) || per_second < 0) return "–";
  if (per_second < 100) return significant(per_second, 2);
  return grouped(static_cast<std::uint64_t>(std::llround(std::min(per_second, 1e18))));
}

std::string times_text(double ratio) {
  return fmt::format("{}×", fixed(ratio, 2));
}

std::string utc_text(UnixTime time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(whole_seconds(time)));
}

}  // namespace cox::metrics
