// Sentences with numbers, formatted like printf in the C locale: a number has a decimal point
// whatever locale the program chose. Pure; standard library only.
#pragma once

#include <string>

namespace cox {

// Formats like printf. Supports the letters d i u x c s f e g, the lengths l ll z, a width, and the
// flags '+' and '0'.
[[gnu::format(printf, 1, 2)]] std::string sentence(const char* format, ...);

}  // namespace cox
