#include "metrics/format.h"

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace cox::metrics {
namespace {

std::string word_for(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "inf" : "-inf";
}

std::string chars(double value, std::chars_format format, int digits) {
  char text[400];
  const auto end = std::to_chars(text, text + sizeof text, value, format, digits);
  return std::string(text, end.ptr);
}

struct Scaled {
  double value;
  const char* unit;
};

std::string two_digits(std::int64_t value) {
  return (value < 10 ? "0" : "") + std::to_string(value);
}

std::int64_t whole_seconds(UnixTime time) {
  return std::isfinite(time.seconds) && std::abs(time.seconds) < 1e12
             ? static_cast<std::int64_t>(std::floor(time.seconds))
             : 0;
}

}  // namespace

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return word_for(value);
  return chars(value, std::chars_format::fixed, decimals);
}

std::string significant(double value, int digits) {
  if (!std::isfinite(value)) return word_for(value);
  const double magnitude = std::abs(value);
  if (magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e7))
    return chars(value, std::chars_format::scientific, digits - 1);
  const int before = magnitude < 1 ? 0 : static_cast<int>(std::floor(std::log10(magnitude))) + 1;
  const int leading =
      magnitude > 0 && magnitude < 1 ? -static_cast<int>(std::floor(std::log10(magnitude))) - 1 : 0;
  const int decimals =
      before == 0 ? digits + leading - (magnitude == 0 ? 1 : 0) : std::max(digits - before, 0);
  return chars(value, std::chars_format::fixed, decimals);
}

std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string rate_text(double per_second) {
  if (!std::isfinite(per_second) || per_second < 0) return "–";
  if (per_second < 100) return significant(per_second, 2);
  return grouped(static_cast<std::uint64_t>(std::llround(std::min(per_second, 1e18))));
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return word_for(seconds);
  if (seconds == 0) return "0 s";
  const double magnitude = std::abs(seconds);
  Scaled scaled{seconds, " s"};
  if (magnitude < 1e-3)
    scaled = {seconds * 1e6, " µs"};
  else if (magnitude < 1)
    scaled = {seconds * 1e3, " ms"};
  return significant(scaled.value, 3) + scaled.unit;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "–";
  const auto s = static_cast<std::int64_t>(std::min(seconds, 1e12));
  if (s < 60) return std::to_string(s) + " s";
  if (s < 3600) return std::to_string(s / 60) + " min " + two_digits(s % 60) + " s";
  if (s < 86400) return std::to_string(s / 3600) + " h " + two_digits(s / 60 % 60) + " min";
  return std::to_string(s / 86400) + " d " + two_digits(s / 3600 % 24) + " h";
}

std::string bytes_text(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return (unit == 0 ? std::to_string(bytes) : significant(value, 3)) + kUnits[unit];
}

std::string percent_text(double fraction, int digits) {
  return fixed(100 * fraction, digits) + " %";
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
