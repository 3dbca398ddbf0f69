// Valid files of every target, to start from: made by the code that writes them, so that they
// follow its formats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cox::fuzz {

// The same in every run. REQUIRES: the name of a target.
std::vector<std::string> seeds_of(std::string_view target);

}  // namespace cox::fuzz
