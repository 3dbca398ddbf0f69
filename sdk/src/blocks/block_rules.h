// Checks of the settings that name blocks by patterns: one that fits no block of the model is an
// error before the first step, with the names that it may have meant. Used by the actuator that
// carries such settings out. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox::detail {

// Returns invalid_argument unless the pattern fits one of the names. `key` is the setting, `rule`
// what it says where the pattern stands: "h.9=recompute".
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
