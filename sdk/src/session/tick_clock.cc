#include "sdk/src/session/tick_clock.h"

#include <fstream>
#include <string>

namespace cox::detail {

bool has_steady_ticks(const char* clock_source) {
#if defined(__x86_64__)
  std::ifstream file(clock_source);
  std::string name;
  return (file >> name) && name == "tsc";
#else
  static_cast<void>(clock_source);
  return false;
#endif
}

UnixTime wall_clock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(since).count()};
}

}  // namespace cox::detail
