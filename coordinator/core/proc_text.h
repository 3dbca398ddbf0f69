// How the texts of /proc and /sys are read, whatever they hold: what is no number is none. Pure;
// any thread.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace cox::proc_text {

// Returns the text up to the next `end` and takes it, with the end, from `text`.
inline std::string_view cut(std::string_view& text, char end) {
  const std::size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

inline std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(start);
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  text = trimmed(text);
  Number value{};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

// Returns what follows `word` and a blank at the beginning of a line; empty when no line has it.
inline std::string_view after(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const std::string_view line = cut(text, '\n');
    if (line.size() > word.size() && line.starts_with(word) &&
        (line[word.size()] == ' ' || line[word.size()] == '\t'))
      return line.substr(word.size() + 1);
  }
  return {};
}

}  // namespace cox::proc_text
