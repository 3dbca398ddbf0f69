#include "sdk/examples/gpt2/faults.h"

#include <charconv>

namespace gpt2 {

cox::Status parse_overflow(const std::string& text, Faults& faults) {
  const char* const last = text.data() + text.size();
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  const auto first = std::from_chars(text.data(), last, from);
  const bool has_dash = first.ec == std::errc{} && first.ptr != last && *first.ptr == '-';
  const auto second = has_dash ? std::from_chars(first.ptr + 1, last, to) : first;
  if (!has_dash || second.ec != std::errc{} || second.ptr != last || from > to) {
    return cox::invalid_argument(
        "--overflow: expected FROM-TO, steps that count from 0, for example 30-49, found '" + text +
        "'");
  }
  faults.overflow_from = from;
  faults.overflow_to = to;
  return cox::ok_status();
}

}  // namespace gpt2
