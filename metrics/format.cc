#include "metrics/format.h"

#include <chrono>
#include <cmath>
#include <cstdio>

namespace cox::metrics {
namespace {

std::string two_digits(std::int64_t value) {
  return (value < 10 ? "0" : "") + std::to_string(value);
}

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

std::string clock_text(UnixTime time) {
  const std::int64_t day = ((whole_seconds(time) % 86400) + 86400) % 86400;
  return two_digits(day / 3600) + ":" + two_digits(day / 60 % 60) + ":" + two_digits(day % 60);
}

std::string utc_text(UnixTime time) {
  using namespace std::chrono;
  const sys_seconds point{seconds(whole_seconds(time))};
  const year_month_day date{floor<days>(point)};
  return std::to_string(static_cast<int>(date.year())) + "-" +
         two_digits(static_cast<unsigned>(date.month())) + "-" +
         two_digits(static_cast<unsigned>(date.day())) + " " + clock_text(time) + " UTC";
}

}  // namespace cox::metrics
