#include "sdk/examples/gpt2/slowdown.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace gpt2 {
namespace {

constexpr double kMostTimes = 1000;

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the text before `mark` and moves `text` behind it; returns the whole text if there is no
// mark.
std::string_view cut(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return head;
}

bool read_range(std::string_view text, Slowdown& slowdown) {
  const auto from = number<std::uint64_t>(cut(text, '-'));
  const auto to = number<std::uint64_t>(text);
  if (!from || !to || *from > *to) return false;
  slowdown.from_step = *from;
  slowdown.to_step = *to;
  return true;
}

}  // namespace

cox::Result<Slowdown> parse_slowdown(const std::string& text) {
  const cox::Status wrong = cox::invalid_argument(
      "--slow: expected RANK:FACTOR or RANK:FACTOR:FROM-TO with a factor from 1 to 1000 and steps "
      "that count from 0, for example 1:2.5:100-199, found '" +
      text + "'");
  std::string_view rest = text;
  Slowdown slowdown;
  const auto rank = number<std::int64_t>(cut(rest, ':'));
  const auto factor = number<double>(cut(rest, ':'));
  if (!rank || *rank < 0 || !factor) return wrong;
  if (!(*factor >= 1 && *factor <= kMostTimes)) return wrong;  // NaN too
  slowdown.rank = *rank;
  slowdown.factor = *factor;
  const bool has_range = text.find(':', text.find(':') + 1) != std::string::npos;
  if (has_range && !read_range(rest, slowdown)) return wrong;
  return slowdown;
}

cox::Status check_ranks(std::span<const Slowdown> slowdowns, int world_size) {
  for (const Slowdown& slowdown : slowdowns) {
    if (slowdown.rank < world_size) continue;
    return cox::invalid_argument("--slow: expected a rank from 0 to " +
                                 std::to_string(world_size - 1) + ", found " +
                                 std::to_string(slowdown.rank));
  }
  return cox::ok_status();
}

double factor_of(std::span<const Slowdown> slowdowns, std::int64_t rank, std::uint64_t step) {
  double factor = 1;
  for (const Slowdown& slowdown : slowdowns) {
    const bool is_covered = slowdown.from_step <= step && step <= slowdown.to_step;
    if (slowdown.rank == rank && is_covered) factor = slowdown.factor;
  }
  return factor;
}

}  // namespace gpt2
