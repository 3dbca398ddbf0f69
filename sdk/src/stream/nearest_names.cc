#include "sdk/src/stream/nearest_names.h"

#include <algorithm>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"

namespace cox::detail {
namespace {

constexpr std::size_t kNamesTold = 5;
constexpr std::size_t kMostCompared = 100;  // bytes of a pattern

}  // namespace

std::string nearest_names(std::span<const std::string> names, std::string_view pattern) {
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

}  // namespace cox::detail
