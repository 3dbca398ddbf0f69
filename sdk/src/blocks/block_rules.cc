#include "sdk/src/blocks/block_rules.h"

#include "coordinator/core/words.h"

namespace cox::detail {

Status check_fits(std::string_view key, std::string_view pattern, std::string_view rule,
                  std::span<const std::string> names) {
  const bool fits = std::ranges::any_of(
      names, [pattern](const std::string& name) { return fits_pattern(pattern, name); });
  if (fits) return ok_status();
  if (names.empty())
    return invalid_argument(key, ": expected the name of a block, found ", shown(rule),
                            ", but the session has no blocks; pass the model to a Trainer or a "
                            "Reducer, adopt the model, or remove the setting");
  return invalid_argument(key, ": expected the name of a block, found ", shown(rule),
                          ", which fits none of ", names.size(), "; the nearest are ",
                          nearest_names(names, pattern));
}

}  // namespace cox::detail
