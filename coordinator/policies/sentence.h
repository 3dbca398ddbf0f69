// Sentences with numbers for reasons. Pure.
#pragma once

#include <string>

namespace cox {

// As printf does it, cut at 400 bytes.
[[gnu::format(printf, 1, 2)]] std::string sentence(const char* format, ...);

}  // namespace cox
