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

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// The value of `key` in lines of "key = value".
std::string value_in(std::string_view lines, std::string_view key) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const auto equals = line.find('=');
    if (equals != std::string_view::npos && trimmed(line.substr(0, equals)) == key)
      return std::string(trimmed(line.substr(equals + 1)));
  }
  return {};
}

}  // namespace

std::vector<Setting> settings_of(const Config& config) {
  const std::string lines = text(config);
  std::vector<Setting> settings;
  for (const ConfigOption& option : config_options()) {
    std::string value = value_in(lines, option.key);
    if (is_private(option.key) && !value.empty()) value = "(set)";
    settings.push_back({option.key, std::move(value), option.unit, option.help});
  }
  return settings;
}

}  // namespace cox::metrics
