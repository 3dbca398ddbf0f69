// Checks of settings that name blocks by patterns. A pattern that fits no block of the model is an
// error before the first step, with the names that the user may have meant. Used by the actuator
// that applies the settings. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox::detail {

// Returns invalid_argument unless the pattern fits one of the names. `key` is the setting; `rule`
// is its text with the pattern: "h.9=recompute".
Status check_fits(std::string_view key, std::string_view pattern, std::string_view rule,
                  std::span<const std::string> names);

// Returns the error of the first rule that fits no name.
template <class Value>
Status check_rules_fit(std::string_view key, const std::vector<BlockRule<Value>>& rules,
                       std::span<const std::string> names) {
  for (const BlockRule<Value>& rule : rules) {
    if (Status fits = check_fits(key, rule.pattern, rule.text(), names); !fits.ok()) return fits;
  }
  return ok_status();
}

}  // namespace cox::detail
