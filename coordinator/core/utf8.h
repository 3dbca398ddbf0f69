// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cox {

// Bytes of the first character of `text` (1 to 4), or 0 if it does not start with a whole valid
// one.
std::size_t utf8_length(std::string_view text);

bool is_utf8(std::string_view text);

// Returns `text` with every byte that does not belong to a valid sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// Requires: a code point up to 0x10FFFF that is no surrogate.
void append_utf8(std::string& out, std::uint32_t code_point);

}  // namespace cox
