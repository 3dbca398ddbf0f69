// The first line of a text: what torch's exceptions say before their backtrace. Pure.
#pragma once

#include <string>
#include <string_view>

namespace cox::detail {

inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace cox::detail
