#include "metrics/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace cox::metrics {
namespace {

std::int64_t whole_seconds(UnixTime time) {
  return std::isfinite(time.seconds) && std::abs(time.seconds) < 1e12
             ? static_cast<std::int64_t>(std::floor(time.seconds))
             : 0;
}

}  // namespace

std::string rate_text(double per_second) {
  if (!std::isfinite(per_second) || per_second < 0) return "–";
  if (per_second < 100) return significant(per_second, 2);
  return grouped(static_cast<std::uint64_t>(std::llround(std::min(per_second, 1e18))));
}

std::string times_text(double ratio) {
  return fixed(ratio, 2) + "×";
}

std::string utc_text(UnixTime time) {
  using namespace std::chrono;
  const sys_seconds point{seconds(whole_seconds(time))};
  const year_month_day date{floor<days>(point)};
  const hh_mm_ss clock{point - floor<days>(point)};
  return fmt::format("{}-{:02}-{:02} {:02}:{:02}:{:02} UTC", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

}  // namespace cox::metrics
