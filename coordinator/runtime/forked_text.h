// Texts for a forked process that has dropped the dynamic linker's memory (death_watch.h). Such a
// process may call only functions of its own sources, and functions that were resolved when the
// program started (-fno-plt). Standard functions that call others are excluded, so the functions
// below search and write texts. Pure.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace cox::runtime {

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

inline bool is_at(std::string_view text, std::size_t place, std::string_view part) {
  if (part.size() > text.size() || place > text.size() - part.size()) return false;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (text[place + i] != part[i]) return false;
  }
  return true;
}

inline std::size_t place_of(std::string_view part, std::string_view text) {
  for (std::size_t i = 0; i + part.size() <= text.size(); ++i) {
    if (is_at(text, i, part)) return i;
  }
  return kNowhere;
}

// A text in the caller's memory, cut to the memory's size.
class Text {
 public:
  explicit Text(std::span<char> to) : to_(to) {}

  Text& operator<<(std::string_view part) {
    for (const char c : part) {
      if (size_ < to_.size()) to_[size_++] = c;
    }
    return *this;
  }
  template <std::integral Number>
  Text& operator<<(Number number) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }
  std::string_view view() const { return {to_.data(), size_}; }

 private:
  std::span<char> to_;
  std::size_t size_ = 0;
};

template <class Number>
std::optional<Number> number_from(std::string_view text, int base = 10) {
  Number number{};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (read.ec != std::errc{}) return std::nullopt;
  return number;
}

}  // namespace cox::runtime
