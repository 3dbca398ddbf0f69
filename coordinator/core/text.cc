#include "coordinator/core/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace cox {
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

// Returns the bytes of the first character of `text` (1 to 4), or 0 if `text` does not begin with a
// whole valid character.
std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool too_large = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

std::string six_decimals(double value) {
  return chars(value, std::chars_format::fixed, 6);
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return word_for(value);
  return chars(value, std::chars_format::fixed, decimals);
}

std::string significant(double value, int digits) {
  if (!std::isfinite(value)) return word_for(value);
  const double magnitude = std::abs(value);
  if (magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e7))
    return chars(value, std::chars_format::scientific, digits - 1);
  const int exponent = magnitude == 0 ? 0 : static_cast<int>(std::floor(std::log10(magnitude)));
  const int decimals = std::max(digits - 1 - exponent, 0);
  return chars(value, std::chars_format::fixed, decimals);
}

std::string general(double value, int digits) {
  return chars(value, std::chars_format::general, digits);
}

std::string zero_padded(std::uint64_t value, std::size_t width) {
  const std::string digits = std::to_string(value);
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return word_for(seconds);
  if (seconds == 0) return "0 s";
  const double magnitude = std::abs(seconds);
  if (magnitude < 1e-3) return concat(significant(seconds * 1e6, 3), " µs");
  if (magnitude < 1) return concat(significant(seconds * 1e3, 3), " ms");
  return concat(significant(seconds, 3), " s");
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "–";
  const auto s = static_cast<std::uint64_t>(std::min(seconds, 1e12));
  if (s < 60) return concat(s, " s");
  if (s < 3600) return concat(s / 60, " min ", zero_padded(s % 60, 2), " s");
  if (s < 86400) return concat(s / 3600, " h ", zero_padded(s / 60 % 60, 2), " min");
  return concat(s / 86400, " d ", zero_padded(s / 3600 % 24, 2), " h");
}

std::string bytes_text(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return concat(unit == 0 ? std::to_string(bytes) : significant(value, 3), kUnits[unit]);
}

std::string flops_text(double flops) {
  static constexpr std::array<const char*, 7> kUnits = {" FLOP",  " kFLOP", " MFLOP", " GFLOP",
                                                        " TFLOP", " PFLOP", " EFLOP"};
  std::size_t unit = 0;
  while (std::abs(flops) >= 1000 && unit + 1 < kUnits.size()) {
    flops /= 1000;
    ++unit;
  }
  return concat(unit == 0 ? fixed(flops, 0) : significant(flops, 3), kUnits[unit]);
}

std::string percent_text(double fraction, int digits) {
  return concat(fixed(100 * fraction, digits), " %");
}

std::string change_text(double ratio) {
  const std::string percent = percent_text(ratio - 1, 1);
  return percent.starts_with('-') ? percent : concat("+", percent);
}

std::string change_text(double ratio, double low, double high) {
  if (low <= 0) return change_text(ratio);
  return concat(change_text(ratio), " (", change_text(low), " to ", change_text(high), ")");
}

std::string ranges_text(std::span<const std::size_t> numbers, std::size_t most) {
  std::string out;
  for (std::size_t i = 0, ranges = 0; i < numbers.size(); ++ranges) {
    if (ranges == most) return concat(out, " and ", numbers.size() - i, " more");
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    out += concat(i == 0 ? "" : ", ", numbers[i]);
    if (end > i + 1) out += concat("-", numbers[end - 1]);
    i = end;
  }
  return out;
}

std::string ranks_text(std::span<const std::size_t> ranks, std::size_t world_size) {
  constexpr std::size_t kMostRanges = 8;
  if (ranks.size() == world_size && world_size > 1) return concat("all ", world_size, " ranks");
  return concat(ranks.size() == 1 ? "rank " : "ranks ", ranges_text(ranks, kMostRanges));
}

std::string shortened(std::string_view text, std::size_t width) {
  constexpr std::string_view kCut = " ...";
  if (text.size() <= width) return std::string(text);
  const std::size_t room = width - std::min(width, kCut.size());
  std::size_t end = text.rfind(' ', room);
  if (end == std::string_view::npos || end == 0) {
    const auto continues = [&](std::size_t at) { return (text[at] & 0xC0) == 0x80; };
    for (end = room; end > 0 && continues(end);) --end;
  }
  return concat(text.substr(0, end), kCut);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string valid_utf8(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    out += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace cox
