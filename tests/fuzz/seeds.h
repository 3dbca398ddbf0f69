// Valid files of every target as starting points. Made by the writing code, so that the seeds
// follow its formats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cox::fuzz {

// Returns the same seeds in every run. REQUIRES: the name of a target.
std::vector<std::string> seeds_of(std::string_view target);

}  // namespace cox::fuzz
