// Searches texts in served pages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cox::metrics {

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace cox::metrics
