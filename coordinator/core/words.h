// Words from outside: parses numbers, makes words printable in one line of a message that leaves
// the reader's terminal alone, and finds the known word nearest to an unknown one. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "coordinator/core/text.h"

namespace cox {

// Parses the whole text as a number. Returns nothing if the text is no number.
template <class Number>
std::optional<Number> parsed_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

// Returns "a, b, c".
inline std::string joined(std::span<const std::string> parts, std::string_view between = ", ") {
  std::string out;
  for (const std::string& part : parts) out.append(out.empty() ? "" : between).append(part);
  return out;
}

// Returns the text with its ASCII letters in lower or upper case, in any locale of the program.
inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}
inline std::string upper_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

// Returns the text as UTF-8 with '?' in place of every control character.
inline std::string printable(std::string_view text) {
  std::string out = valid_utf8(text);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned char>(out[i]);
    const bool is_c1 = byte == 0xC2 && i + 1 < out.size() &&
                       static_cast<unsigned char>(out[i + 1]) < 0xA0;  // U+0080 .. U+009F
    if (is_c1) out.erase(i + 1, 1);
    if (is_c1 || byte < 0x20 || byte == 0x7F) out[i] = '?';
  }
  return out;
}

// Returns the beginning of an unexpected text, for a quotation in a message.
inline std::string shown(std::string_view text) {
  constexpr std::size_t kMostShown = 80;
  return printable(text.substr(0, kMostShown)) + (text.size() > kMostShown ? "..." : "");
}

// Returns how many letters must be replaced, added or left out to turn one word into the other.
// Takes time in proportion to the product of their lengths.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0u);
  for (const char letter : a) {
    std::size_t* at = row.data();
    std::size_t diagonal = (*at)++;
    for (const char other : b) {
      std::size_t least = diagonal + (letter == other ? 0 : 1);
      if (*at + 1 < least) least = *at + 1;
      diagonal = *++at;
      if (diagonal + 1 < least) least = diagonal + 1;
      *at = least;
    }
  }
  return row.back();
}

// Returns the first of the known words nearest to `word`. Only the first 100 bytes of `word` count.
// REQUIRES: a known word.
inline std::string nearest(std::span<const std::string> known, std::string_view word) {
  constexpr std::size_t kMostCompared = 100;
  word = word.substr(0, kMostCompared);
  std::array<std::uint8_t, 256> letters{};
  for (const char c : word) ++letters[static_cast<unsigned char>(c)];
  const std::string* best = nullptr;
  std::size_t least = 0;
  for (const std::string& each : known) {
    // Letters that only one of the words has must be replaced, in any order. Counting such letters
    // is quick, and spares most words the comparison.
    auto left = letters;
    std::size_t common = 0;
    for (const char c : each) {
      std::uint8_t& count = left[static_cast<unsigned char>(c)];
      if (count == 0) continue;
      --count;
      ++common;
    }
    if (best != nullptr && std::max(each.size(), word.size()) - common >= least) continue;
    const std::size_t distance = edit_distance(each, word);
    if (best != nullptr && distance >= least) continue;
    best = &each;
    least = distance;
  }
  return *best;
}

// Returns "h.1, h.2 and 9 more": the names most similar to the pattern first, for messages about
// settings and options that name blocks. Only the first 100 bytes of the pattern count. Empty if
// there are no names.
inline std::string nearest_names(std::span<const std::string> names, std::string_view pattern) {
  constexpr std::size_t kNamesTold = 5;
  constexpr std::size_t kMostCompared = 100;
  std::string word(pattern.substr(0, kMostCompared));
  std::erase(word, '*');
  struct Near {
    std::size_t distance = 0;
    std::size_t name = 0;
    auto operator<=>(const Near&) const = default;
  };
  std::vector<Near> order;
  for (std::size_t n = 0; n < names.size(); ++n)
    order.push_back({edit_distance(names[n], word), n});
  std::ranges::sort(order);
  std::string text;
  for (std::size_t n = 0; n < std::min(order.size(), kNamesTold); ++n)
    text += (n == 0 ? "" : ", ") + names[order[n].name];
  return order.size() <= kNamesTold ? text
                                    : concat(text, " and ", order.size() - kNamesTold, " more");
}

}  // namespace cox
