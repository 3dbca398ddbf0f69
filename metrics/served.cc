#include "metrics/served.h"

#include <algorithm>
#include <array>

namespace cox::metrics {
namespace {

// Anyone who reaches the port can read the answer.
bool is_private(std::string_view key) {
  constexpr std::array<std::string_view, 6> kWords = {"directory", "journal",  "file",
                                                      "token",     "password", "secret"};
  return std::any_of(kWords.begin(), kWords.end(), [key](std::string_view word) {
    return key.find(word) != std::string_view::npos;
  });
}

}  // namespace

std::vector<ConfigOption> settings_of(const Config& config) {
  std::vector<ConfigOption> settings = config_options(config);
  for (ConfigOption& setting : settings) {
    if (is_private(setting.key) && !setting.value.empty()) setting.value = "(set)";
  }
  return settings;
}

}  // namespace cox::metrics
