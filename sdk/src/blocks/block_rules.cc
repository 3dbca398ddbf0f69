#include "sdk/src/blocks/block_rules.h"

#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"

namespace cox::detail {
namespace {

constexpr std::size_t kNamesTold = 5;
constexpr std::size_t kMostCompared = 100;  // bytes of a pattern

// "h.1, h.2 and 9 more", those that are most like the pattern first.
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

}  // namespace

Status check_fits(std::string_view key, std::string_view pattern, std::string_view rule,
                  std::span<const std::string> names) {
  const bool fits = std::ranges::any_of(
      names, [pattern](const std::string& name) { return fits_pattern(pattern, name); });
  if (fits) return ok_status();
  if (names.empty())
    return invalid_argument(key, ": expected the name of a block, found ", shown(rule),
                            ", and a model without blocks; wrap some (cox::run, cox::wrap) or take "
                            "the setting out");
  return invalid_argument(key, ": expected the name of a block, found ", shown(rule),
                          ", which fits none of ", names.size(), "; the nearest are ",
                          nearest_names(names, pattern));
}

}  // namespace cox::detail
