// What was built. Passed in by the program, so that nothing here depends on the build.
#pragma once

#include <string>

namespace cox::metrics {

struct BuildInfo {
  std::string version;   // "0.1.0"
  std::string revision;  // short commit, or empty
};

}  // namespace cox::metrics
