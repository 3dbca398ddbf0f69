// Text from ranks and configuration may hold any bytes; what is served must be UTF-8. Pure.
#pragma once

#include <string>
#include <string_view>

namespace cox::metrics {

// `text` with every byte that does not belong to a valid UTF-8 sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace cox::metrics
