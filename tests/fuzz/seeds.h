// Valid files for every target, as starting points of the search. Made by the code that writes such
// files, so the seeds follow changes of a format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cox::fuzz {

// Returns the same seeds in every run. REQUIRES: the name of a target.
std::vector<std::string> seeds_of(std::string_view target);

}  // namespace cox::fuzz
