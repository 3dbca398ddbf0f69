// The types that every section of the configuration is declared with; settings.h makes the rows.
// Plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"

namespace cox {

// PolicyMode says how far a policy may go. Under `observe` the policy decides and gives reasons,
// but changes nothing.
enum class PolicyMode : std::uint8_t { off = 0, observe = 1, on = 2 };

template <class Section>
struct Setting;

// Returns whether the whole of `name` fits the pattern, in which '*' matches any text.
bool fits_pattern(std::string_view pattern, std::string_view name);

// BlockRule sets a value for every block whose name fits its pattern.
template <class Value>
struct BlockRule {
  std::string pattern;
  Value value{};

  std::string text() const { return concat(pattern, "=", value); }  // as in a setting
  friend bool operator==(const BlockRule&, const BlockRule&) = default;
};

// Returns the last of the rules that fits the name, or null.
template <class Value>
const BlockRule<Value>* last_fitting(const std::vector<BlockRule<Value>>& rules,
                                     std::string_view name) {
  const BlockRule<Value>* last = nullptr;
  for (const BlockRule<Value>& rule : rules) {
    if (fits_pattern(rule.pattern, name)) last = &rule;
  }
  return last;
}

}  // namespace cox
