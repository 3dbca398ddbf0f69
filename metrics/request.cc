#include "metrics/request.h"

#include <algorithm>
#include <array>

#include "coordinator/core/words.h"
#include "coordinator/io/json.h"

namespace cox::metrics {
namespace {

// Returns whether a value must be hidden, because anyone who reaches the port can read the answer.
bool is_private(std::string_view key) {
  constexpr std::array<std::string_view, 6> kWords = {"directory", "journal",  "file",
                                                      "token",     "password", "secret"};
  return std::any_of(kWords.begin(), kWords.end(), [key](std::string_view word) {
    return key.find(word) != std::string_view::npos;
  });
}

}  // namespace

Response refusal(int status, std::string_view message) {
  io::JsonWriter out;
  out.begin_object().field("error", message).end_object();
  return {status, "application/json; charset=utf-8", out.take()};
}

Result<std::optional<std::uint64_t>> query_number(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    const auto equals = part.find('=');
    if (part.substr(0, equals) != name) continue;
    const std::string_view text =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    const auto number = parsed_number<std::uint64_t>(text);
    if (number) return number;
    return invalid_argument("query parameter ", name, ": expected a whole number from 0, found \"",
                            text.substr(0, 40), "\"");
  }
  return std::optional<std::uint64_t>();
}

std::vector<ConfigOption> settings_of(const Config& config) {
  std::vector<ConfigOption> settings = config_options(config);
  for (ConfigOption& setting : settings) {
    if (is_private(setting.key) && !setting.value.empty()) setting.value = "(set)";
  }
  return settings;
}

}  // namespace cox::metrics
