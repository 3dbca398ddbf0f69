// Tells which names a pattern that fits none of them may have meant, for the messages about
// settings and options that name blocks. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cox::detail {

// Returns "h.1, h.2 and 9 more": the names that are most like the pattern first, of which the first
// 100 bytes count. Empty where there are no names.
std::string nearest_names(std::span<const std::string> names, std::string_view pattern);

}  // namespace cox::detail
