// first_line() cuts the backtrace off the text of one of torch's exceptions. Pure.
#pragma once

#include <string>
#include <string_view>

namespace cox::detail {

inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace cox::detail
