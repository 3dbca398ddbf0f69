// Text for people: parts and numbers concatenated; numbers, sizes, times and sets of ranks in
// readable form; and UTF-8 as in RFC 3629 (no overlong forms, no surrogates, nothing above
// U+10FFFF). Pure functions; the same output in every locale.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace cox {

std::string six_decimals(double value);  // "0.500000"; "nan", "inf" as words

// Returns one part of a text: a text unchanged, a whole number or a strong id in decimal, another
// number with six decimals, an enum by its to_string().
template <class Part>
auto text_part(const Part& part) {
  static_assert(!std::is_same_v<Part, char>, "would be a number: pass a text");
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    return std::string_view(part);
  } else if constexpr (std::is_floating_point_v<Part>) {
    return six_decimals(static_cast<double>(part));
  } else if constexpr (std::is_arithmetic_v<Part>) {
    return std::to_string(part);
  } else if constexpr (requires { part.value(); }) {
    return std::to_string(part.value());
  } else {
    return to_string(part);
  }
}

// Returns the parts concatenated: concat("rank ", rank, " of ", world_size).
std::string concat(const auto&... parts) {
  std::string out;
  (out.append(text_part(parts)), ...);
  return out;
}

std::string fixed(double value, int decimals);      // "2.41"; "NaN", "inf" as words
std::string significant(double value, int digits);  // "0.0123", "1.24", "5.6e-09"
std::string general(double value, int digits);      // "%.*g" of printf: "0.5", "1e+09", "nan"
std::string zero_padded(std::uint64_t value, std::size_t width);  // "00042"
std::string grouped(std::uint64_t value);                         // "1,234,567"
std::string seconds_text(double seconds);                         // "412 ms", "1.83 s", "85.0 µs"
std::string duration_text(double seconds);                        // "2 h 05 min", "43 s"
std::string bytes_text(std::uint64_t bytes);                      // "3.10 GiB"
std::string flops_text(double flops);                             // "1.24 GFLOP"
std::string percent_text(double fraction, int digits);            // "41 %"
std::string change_text(double ratio);  // "-21.3 %" for 0.787, "+8.0 %" for 1.08
// Returns "-21.3 % (-24.0 % to -18.6 %)"; without the interval if `low` is 0, not known.
std::string change_text(double ratio, double low, double high);

// Returns ascending numbers as "0-3, 7", and after `most` ranges as "0-3, 7 and 12 more".
std::string ranges_text(std::span<const std::size_t> numbers,
                        std::size_t most = static_cast<std::size_t>(-1));

// Returns "all 4 ranks", "rank 3" or "ranks 0-3, 7", with eight ranges at most. REQUIRES: ascending
// ranks.
std::string ranks_text(std::span<const std::size_t> ranks, std::size_t world_size);

// Returns the text whole if it has at most `width` bytes. Otherwise returns its first words and an
// ellipsis of 4 bytes, together at most `width` bytes; the ellipsis alone if `width` is below 5.
// Cuts a first word that is too long between two characters.
std::string shortened(std::string_view text, std::size_t width);

bool is_utf8(std::string_view text);

// Returns the text with U+FFFD in place of every byte that is not part of a valid character.
std::string valid_utf8(std::string_view text);

}  // namespace cox
